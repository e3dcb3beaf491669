"""Observers of instances, and the check whether a registration still wants an instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kplane.api import RegistrationMode
from kplane.mcm.describe.kinds import services_of
from kplane.mcm.errors import RegistrationWithdrawn
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster
from kplane.provider.providers.kplane import UID_ATTRIBUTE, is_occupied, is_served

__all__ = ["InstanceObserver", "NullReporter", "Object", "check_wanted", "wants_instance"]

Object = Mapping[str, Any]


class InstanceObserver(Protocol):
    """Observer of the instances of a cluster, by the name of the cluster."""

    async def announce(self, cluster: Cluster, *, version: str | None) -> None:
        """Announce that an instance is about to start, with its version if known.

        Raises RegistrationWithdrawn if the instance must not start, NotAnnounced if it must not start now.
        """

    async def confirm(self, cluster: Cluster) -> None:
        """Confirm the announcement of an instance that holds its Lease; the instance starts when this call returns.

        Raises RegistrationWithdrawn or NotAnnounced, as `announce` does.
        """

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        """Note a change of the instances."""

    def report_failure(self, cluster: Cluster, message: str) -> None:
        """Note that an instance cannot start; its start is retried."""

    async def end(self, name: str) -> None:
        """Note that all instances have ended."""


class NullReporter:
    """Observer that writes no status, and only checks whether a registration still wants an instance."""

    def __init__(
        self, *, registration: Callable[[str], Object | None] | None, mode: RegistrationMode = RegistrationMode.SHARED
    ) -> None:
        """`registration` and `mode` are as in StatusReporter; without `registration`, no check takes place."""
        self._registration = registration
        self._mode = mode

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:  # noqa: ARG002
        """See `InstanceObserver.announce`."""
        if self._registration is not None:
            uid = cluster.attributes.get(UID_ATTRIBUTE, "")
            registration = self._registration(cluster.name)
            check_wanted(cluster.name, registration, uid=uid, services=services_of(cluster), mode=self._mode)

    async def confirm(self, cluster: Cluster) -> None:
        """See `InstanceObserver.confirm`."""

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        """See `InstanceObserver.update`."""

    def report_failure(self, cluster: Cluster, message: str) -> None:
        """See `InstanceObserver.report_failure`."""

    async def end(self, name: str) -> None:
        """See `InstanceObserver.end`."""


def check_wanted(
    name: str, registration: Object | None, *, uid: str, services: Sequence[str], mode: RegistrationMode
) -> None:
    """Raise RegistrationWithdrawn if the last seen registration does not want these instances for the control plane.

    The causes: the registration wants no instance of this mode, reports an instance of the other mode, or does not
    ask for every service.
    """
    if not wants_instance(registration, uid=uid, mode=mode):
        raise RegistrationWithdrawn(f"registration {name} wants no instance for control plane {uid} any more")
    if registration is not None and is_occupied(registration, mode=mode):
        raise RegistrationWithdrawn(f"registration {name} has an instance of the other mode, which has not ended yet")
    asked = ((registration or {}).get("status") or {}).get("services") or services
    if gone := set(services) - set(asked):
        # Another registration may have got the service.
        raise RegistrationWithdrawn(f"registration {name} does not ask for {' and '.join(sorted(gone))} any more")


def wants_instance(registration: Object | None, *, uid: str, mode: RegistrationMode) -> bool:
    if registration is None or registration["metadata"].get("deletionTimestamp"):
        return False
    if not is_served(registration, mode=mode):
        return False
    status = registration.get("status") or {}
    return status.get("ready") is True and str(status.get("controlPlaneUID") or "") == uid
