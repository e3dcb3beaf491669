"""Where the data of a control plane live."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import override

from kplane.api.compute_resources import StorageAmount
from kplane.api.extensions import ATOMIC_MAP, Rule, rules
from kplane.api.references import ObjectName
from kplane.api.resource import ApiModel

__all__ = ["ControlPlaneMode", "Home", "Volume"]


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


class Home(ApiModel):
    """A place for the data of a control plane, with the API server on them."""

    mode: ControlPlaneMode
    """Whether the data are in the shared etcd or in one of their own."""
    slot: Annotated[int, Field(ge=0, le=1)] = 0
    """Which of two sets of names its components have. While the data move, both homes have components."""

    volume: Volume | None = None
    """The volumes of an etcd of its own; absent for those of the operator's settings."""

    def other(self, mode: ControlPlaneMode, *, volume: Volume | None) -> Home:
        """Return the home that a migration from this one goes to."""
        return Home(mode=mode, slot=1 - self.slot, volume=volume)

    @override
    def __str__(self) -> str:
        """Say it in a message."""
        if self.volume is None:
            return str(self.mode)
        asked = (self.volume.size, self.volume.storage_class_name)
        return f"{self.mode} ({', '.join(each for each in asked if each is not None)})"
