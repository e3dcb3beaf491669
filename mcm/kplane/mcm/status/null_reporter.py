"""Tells registrations nothing: for those who want mcm to write to no object."""

from __future__ import annotations

from collections.abc import Callable

from kplane.api import RegistrationMode
from kplane.mcm.reasons import Reason
from kplane.mcm.status.reporter import Object, check_wanted
from kplane.provider import Cluster
from kplane.provider.providers.kplane import UID_ATTRIBUTE

__all__ = ["Silence"]


class Silence:
    """Stands in for `Reports`, and writes nothing. What a registration wants is looked up as far as it was seen."""

    def __init__(
        self, *, registration: Callable[[str], Object | None] | None, mode: RegistrationMode = RegistrationMode.SHARED
    ) -> None:
        """`registration` returns one as it was last seen; None: clusters come from elsewhere. `mode` as in Reports."""
        self._registration = registration
        self._mode = mode

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:  # noqa: ARG002
        """See `Witness.announce`."""
        if self._registration is not None:
            uid = cluster.attributes.get(UID_ATTRIBUTE, "")
            check_wanted(cluster.name, self._registration(cluster.name), uid=uid, mode=self._mode)

    def say(self, name: str, reason: Reason, *, message: str = "") -> None:
        """See `Witness.say`."""

    def say_failure(self, cluster: Cluster, message: str) -> None:
        """See `Witness.say_failure`."""

    async def end(self, name: str) -> None:
        """See `Witness.end`."""
