"""Metadata of a kind besides its schema, and the base class of the kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kplane.api.names import GROUP, VERSION

__all__ = ["ApiModel", "Column", "Metadata", "OwnerReference", "ResourceInfo", "ResourceModel"]


class ApiModel(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class OwnerReference(ApiModel):
    """Reference to the owner of an object; the object is deleted with its owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(ApiModel):
    """The part of `metadata` that kplane reads."""

    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[OwnerReference] = Field(default_factory=list)
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; columns of priority 1 are shown by `-o wide` only."""

    name: str
    type: Literal["string", "integer", "boolean", "date"]
    json_path: str
    priority: Literal[0, 1] = 0


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """Names, scope and printer columns of a kind."""

    kind: str
    plural: str
    short_names: Sequence[str]
    columns: Sequence[Column]
    selectable: Sequence[str] = ()
    """JSON paths of the fields that are allowed in field selectors."""
    categories: Sequence[str] = ("kplane",)
    scope: Literal["Cluster", "Namespaced"] = "Cluster"
    group: str = GROUP
    version: str = VERSION

    @property
    def api_version(self) -> str:
        """`<group>/<version>`."""
        return f"{self.group}/{self.version}"

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"


class ResourceModel(ApiModel):
    """Base of the kinds; `Kind.model_validate(object)` reads an object of the API server and ignores unknown fields."""

    resource: ClassVar[ResourceInfo]

    metadata: Metadata

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def deleting(self) -> bool:
        """Whether the deletion of the object was requested."""
        return self.metadata.deletion_timestamp is not None
