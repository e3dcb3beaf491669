"""Homes: locations for the data of control planes."""

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
"""The name of the first shared etcd of an operator."""

_DataStoreName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]


class ControlPlaneMode(StrEnum):
    """Virtual shares etcd and address with other control planes; Dedicated has an etcd and an address of its own."""

    VIRTUAL = "Virtual"
    DEDICATED = "Dedicated"


class Volume(ApiModel):
    """Settings of the volume of an etcd member."""

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
    """Size of the volume, such as 20Gi. The default is set by the operator."""
    storage_class_name: ObjectName | None = None
    """Name of the StorageClass that provisions the volume. The default is set by the operator."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.size is None and self.storage_class_name is None:
            raise ValueError("a volume has size, storageClassName or both")
        return self


class DataStoreReference(ApiModel):
    """Reference to a shared etcd of the operator."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    name: _DataStoreName
    """Name of a shared etcd in a --data-store flag of the operator, or `default` for the operator's first shared etcd.
    """


class Home(ApiModel):
    """A location for the data of a control plane, with the API server that uses the data."""

    mode: ControlPlaneMode
    """mode is Virtual for data in a shared etcd, and Dedicated for data in an etcd of their own."""
    slot: Annotated[int, Field(ge=0, le=1)] = 0
    """The set of names that the components of the home use. There are two sets, because both homes have components
    while the data move.
    """

    volume: Volume | None = None
    """The volumes of a dedicated etcd; absent for the operator's settings."""
    data_store: _DataStoreName | None = None
    """Name of the shared etcd with the data; absent for `default`, and for mode Dedicated."""

    def other(self, wanted: Home) -> Home:
        """Return the target of a migration from this home: a copy of `wanted` that uses the other set of names."""
        return wanted.model_copy(update={"slot": 1 - self.slot})

    def is_like(self, other: Home) -> bool:
        """Return whether both homes are equal, apart from the names of their components."""
        return self.model_copy(update={"slot": other.slot}) == other

    @override
    def __str__(self) -> str:
        """Return the home as text for messages."""
        settings = (self.volume.size, self.volume.storage_class_name) if self.volume is not None else (self.data_store,)
        description = ", ".join(setting for setting in settings if setting is not None)
        return f"{self.mode} ({description})" if description else str(self.mode)
