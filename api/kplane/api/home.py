"""Where the data of a control plane live."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kplane.api.resource import ApiModel

__all__ = ["ControlPlaneMode", "Home"]


class ControlPlaneMode(StrEnum):
    """Virtual shares etcd and address with other control planes; Dedicated has its own."""

    VIRTUAL = "Virtual"
    DEDICATED = "Dedicated"


class Home(ApiModel):
    """A place for the data of a control plane, with the API server on them."""

    mode: ControlPlaneMode
    """Whether the data are in the shared etcd or in one of their own."""
    slot: Annotated[int, Field(ge=0, le=1)] = 0
    """Which of two sets of names its components have. While the data move, both homes have components."""

    def other(self, mode: ControlPlaneMode) -> Home:
        """Return the home that a migration from this one goes to."""
        return Home(mode=mode, slot=1 - self.slot)
