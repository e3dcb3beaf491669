"""Protocols of backends: each backend provides the API server of a control plane in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from typing_extensions import override

from kplane.api import ControlPlane, DeletionPolicy, KubernetesVersion
from kplane.api.reasons import Reason
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.status.errors import ConditionError, start_reason
from kplane.data import DataError, Usage
from kplane.data.follow import Place
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.primitives import KeyPair
from kplane.provider import ClusterConfig
from kplane.workloads import ComponentState, Phase, Runtime, WorkloadsError

__all__ = [
    "AccountUid",
    "Hibernating",
    "Movable",
    "Provision",
    "Provisioner",
    "VersionLag",
    "check_ready",
    "data_errors",
    "is_crashing",
    "runtime_errors",
    "start_errors",
]


@dataclass(frozen=True, slots=True)
class VersionLag:
    """Reason and message why a serving API server, or its etcd, differs from the request of spec or class."""

    reason: Reason
    message: str


AccountUid = Callable[[str], Awaitable[str | None]]
"""Function that returns the uid of a ServiceAccount of kplane inside a control plane.

The function returns None if the ServiceAccount does not exist, or is encrypted in etcd.
"""


@dataclass(frozen=True, slots=True)
class Provision:
    """API server that serves a control plane, with the administrator's access."""

    addresses: Addresses
    administrator: ClusterConfig
    """Configuration of the administrator, without credentials while the control plane sleeps."""
    authorities: TenantAuthorities | None
    """CAs and keys of the control plane; None for an adopted control plane, whose keys kplane does not have."""
    controllers: KeyPair | None = None
    """Client certificate of the controllers; None if the controllers get a token."""
    settled: bool = True
    """Whether all programs run as described last.

    If True, every program uses `authorities`, and every replica of the API server has the reported version.
    """
    asked: KubernetesVersion | None = None
    """Version that spec or class ask for; None if both leave the version to the operator."""
    lag: VersionLag | None = None
    again_seconds: float | None = None
    """Seconds until the next call of `ensure`, because a change may come without an event; None if events suffice."""
    fresh: bool = False
    """Whether the keys are a copy of a template made for this control plane, so that no credentials were issued yet."""
    account_uid: AccountUid | None = None
    """Reads the uid of a ServiceAccount, for which kplane signs tokens; None if only the API server issues tokens."""
    data_identity: str | None = None
    """Identity of the data in etcd; None if kplane does not keep the data, or could not read the identity."""
    revision: int | None = None
    """Revision of the etcd that the API server serves; None if kplane does not keep the data, or could not read it."""
    asleep_as: str | None = None
    """Version of the API server that is stopped, or did not start yet; None while an API server runs."""


class Provisioner(Protocol):
    """Backend of control planes. Each call may be repeated, and continues an earlier call that was interrupted."""

    def address(self, control_plane: ControlPlane) -> str | None:
        """Return the address that the control plane claims for itself alone; None if there is no claim, or not yet."""
        ...

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Start or update the API server, and return how to reach it. Raises ConditionError until it serves."""
        ...

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Return whether kplane keeps data for the control plane. Raises ConditionError if that is unknown."""
        ...

    async def volume(self, control_plane: ControlPlane) -> str | None:
        """Return the name of the object in the management namespace that holds the data.

        Returns None if no data are deleted with the namespace.
        """
        ...

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Allow the deletion of retained data together with their namespace. Raises ConditionError."""
        ...

    def usage(self, uid: str) -> Usage | None:
        """Return the storage that the control plane uses in the shared etcd.

        Returns None if the control plane has no keys there, or was not measured yet.
        """
        ...

    def let_go(self, uid: str) -> None:
        """Stop background repairs for this control plane, which is paused or gone, until the next `ensure`."""
        ...

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Transfer data to this control plane, and revoke the access of the former owner, whose uid is `former`.

        Raises ConditionError.
        """
        ...

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Revoke the issued credentials, and stop the programs that `ensure` started.

        Raises ConditionError until both are done.
        """
        ...

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """Delete the data, or leave them in order, as the policy demands; called after `shut_down`.

        Raises ConditionError until that is done.
        """
        ...


class Movable(Provisioner, Protocol):
    """Backend whose data can move to another home, or come from another home.

    To act on the other home, callers pass the control plane that `ControlPlane.at` returns.
    """

    @override
    async def ensure(self, control_plane: ControlPlane, *, writes: bool = True) -> Provision:
        """Start or update the API server, as `Provisioner.ensure` does. Unless `writes`, the API server only reads."""
        ...

    async def prepare_home(self, control_plane: ControlPlane, *, begins_at: int | None, new: bool) -> None:
        """Prepare storage for the data, with a revision above `begins_at` if that is given.

        `new` means that the storage never had data. Raises ConditionError until the storage is ready.
        """
        ...

    def connect(self, control_plane: ControlPlane) -> AbstractAsyncContextManager[Place]:
        """Connect to the data with all rights while the context is open. Raises ConditionError."""
        ...

    async def set_writable(self, control_plane: ControlPlane, *, writable: bool) -> None:
        """Let the API server write, or only read, from the return on; etcd enforces this. Raises ConditionError."""
        ...

    async def seal(self, control_plane: ControlPlane) -> None:
        """Revoke the right to read from the API server of a former home, from the return on. Raises ConditionError."""
        ...

    async def retire(self, control_plane: ControlPlane) -> None:
        """Stop the API server of a former home, and keep its data.

        Raises ConditionError until the API server is gone.
        """
        ...


class Hibernating(Movable, Protocol):
    """Backend whose API servers may be stopped while control planes sleep."""

    async def hibernate(self, control_plane: ControlPlane) -> Provision | None:
        """Stop the API server, and prepare everything that the next API server needs.

        Returns None if an API server has to run first. Raises ConditionError (SleepFailed) if the API server cannot be
        stopped.
        """
        ...

    def is_ending(self, control_plane: ControlPlane) -> bool:
        """Return whether the API server is stopping or absent."""
        ...

    async def needs_api_server(self, control_plane: ControlPlane) -> str | None:
        """Return the reason, as a clause, why the API server has to run at all times; None if it may sleep.

        Raises KeyspaceError.
        """
        ...


_PATIENCE_SECONDS: Final = 3.0
_CRASHES: Final = 2
"""Number of restarts after which a starting component counts as crashing."""


async def check_ready(runtime: Runtime, component: str, *, what: str, published: bool) -> ComponentState:
    """Return the state of a ready component; `what` is its name in messages.

    Raises ConditionError if the component is not ready: APIServerNotReady if `published`. Otherwise Provisioning while
    the component starts, StartFailed if it crashes, and Failed if its program is unobtainable.

    If `published`, waits up to 3 s for a starting component. A restarted operator probes every component anew, and
    control planes must not appear to be down meanwhile.
    """
    if published:
        await _settle(runtime, component)
    state = runtime.state(component)
    if state.phase is not Phase.READY:
        details = f": {state.message}" if state.message else ""
        if state.unobtainable and not published:
            raise ConditionError(Reason.FAILED, f"{what} cannot be started{details}")
        reason = Reason.START_FAILED if is_crashing(state) else Reason.PROVISIONING
        reason = start_reason(reason, published=published)
        raise ConditionError(reason, f"waiting for {what}, which is {state.phase}{details}")
    return state


def is_crashing(state: ComponentState) -> bool:
    """Return whether a component ends by itself, as opposed to a slow start.

    After two restarts, a component counts as crashing during its next start too. Otherwise the reason would change with
    each start.
    """
    if state.phase is Phase.STARTING:
        return state.restarts >= _CRASHES
    return state.phase in {Phase.BACKOFF, Phase.ENDED}


async def _settle(runtime: Runtime, component: str) -> None:
    changed = asyncio.Event()
    unsubscribe = runtime.subscribe(lambda name: changed.set() if name == component else None)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while runtime.state(component).phase is Phase.STARTING:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return
    finally:
        unsubscribe()


@contextmanager
def data_errors() -> Iterator[None]:
    """Convert DataError to ConditionError (Migrating), for migrations."""
    try:
        yield
    except DataError as error:
        raise ConditionError(Reason.MIGRATING, str(error)) from error


@contextmanager
def runtime_errors(reason: Reason) -> Iterator[None]:
    """Convert errors of the runtime and of the shared etcd to ConditionError with this reason."""
    try:
        yield
    except (WorkloadsError, KeyspaceError) as error:
        raise ConditionError(reason, str(error)) from error


@contextmanager
def start_errors(*, published: bool) -> Iterator[None]:
    """Convert errors of the runtime and of the shared etcd to ConditionError, while an API server is being started.

    The reason is APIServerNotReady if `published`. Otherwise EtcdUnavailable or StartFailed tells which of the two
    failed.
    """
    try:
        yield
    except KeyspaceError as error:
        raise ConditionError(start_reason(Reason.ETCD_UNAVAILABLE, published=published), str(error)) from error
    except WorkloadsError as error:
        raise ConditionError(start_reason(Reason.START_FAILED, published=published), str(error)) from error
