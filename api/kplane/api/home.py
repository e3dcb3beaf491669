"""Where the data of a control plane live."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import override

from kplane.api.compute_resources import StorageAmount
from kplane.api.extensions import ATOMIC_MAP, Rule, rules
from kplane.api.references import ObjectName
from kplane.api.resource import ApiModel

__all__ = ["DEFAULT_DATA_STORE", "ControlPlaneMode", "DataStoreReference", "Home", "Volume"]

DEFAULT_DATA_STORE: Final = "default"
"""The name of the shared etcd that an operator has first."""

_DataStoreName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]


class ControlPlaneMode(StrEnum):
    """Virtual shares etcd and address with other control planes; Dedicated has its own."""

    VIRTUAL = "Virtual"
    DEDICATED = "Dedicated"


class Volume(ApiModel):
    """What the volume of an etcd member is to be."""

    model_config = ConfigDict(
        json_schema_extra={
            **ATOMIC_MAP,
            **rules(
                Rule(
                    rule="has(self.size) || has(self.storageClassName)",
                    message="a volume has size, storageClassName or both: set one, or remove volume",
                )
            ),
        }
    )

    size: StorageAmount | None = None
    """How large it is, such as 20Gi. The default is that of the operator."""
    storage_class_name: ObjectName | None = None
    """The StorageClass that makes it. The default is that of the operator."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.size is None and self.storage_class_name is None:
            raise ValueError("a volume has size, storageClassName or both")
        return self


class DataStoreReference(ApiModel):
    """Names one of the shared etcds of the operator."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    name: _DataStoreName
    """A name that the operator was started with, by --data-store, or `default` for the one that it has first."""


class Home(ApiModel):
    """A place for the data of a control plane, with the API server on them."""

    mode: ControlPlaneMode
    """Whether the data are in the shared etcd or in one of their own."""
    slot: Annotated[int, Field(ge=0, le=1)] = 0
    """Which of two sets of names its components have. While the data move, both homes have components."""

    volume: Volume | None = None
    """The volumes of an etcd of its own; absent for those of the operator's settings."""
    data_store: _DataStoreName | None = None
    """The shared etcd that the data are in; absent for `default`, and for mode Dedicated."""

    def other(self, wanted: Home) -> Home:
        """Return the home that a migration from this one goes to: as the one that is wanted, with other names."""
        return wanted.model_copy(update={"slot": 1 - self.slot})

    def is_like(self, other: Home) -> bool:
        """Tell whether both are the same, but for the names of components."""
        return self.model_copy(update={"slot": other.slot}) == other

    @override
    def __str__(self) -> str:
        """Say it in a message."""
        asked = (self.volume.size, self.volume.storage_class_name) if self.volume is not None else (self.data_store,)
        told = ", ".join(each for each in asked if each is not None)
        return f"{self.mode} ({told})" if told else str(self.mode)
