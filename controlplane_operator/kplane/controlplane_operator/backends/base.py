"""How a control plane gets its API server: one protocol, a strategy for each way."""

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
    """Why an API server that serves, or its etcd, is not what is asked for: a reason and a sentence."""

    reason: Reason
    message: str


AccountUid = Callable[[str], Awaitable[str | None]]
"""Returns the uid of a ServiceAccount of kplane inside a control plane; None if there is none, or it is encrypted."""


@dataclass(frozen=True, slots=True)
class Provision:
    """An API server that serves a control plane, and how to get in as its administrator."""

    addresses: Addresses
    administrator: ClusterConfig
    """Without credentials while the control plane sleeps."""
    authorities: TenantAuthorities | None
    """None for an adopted control plane, whose keys kplane does not have."""
    controllers: KeyPair | None = None
    """Client certificate of the controllers; None where they get a token."""
    settled: bool = True
    """Nothing of an earlier description runs any more: `authorities` are those of every program, and the version that
    the API server says is that of all of it.
    """
    asked: KubernetesVersion | None = None
    """The version that the API server is to have, if spec or class ask for one."""
    lag: VersionLag | None = None
    again_seconds: float | None = None
    """When to look again, though nothing may tell of a change."""
    fresh: bool = False
    """Its keys are a copy of a template that was made for it: no credentials of anybody were ever issued there."""
    account_uid: AccountUid | None = None
    """Reads the uid of a ServiceAccount, for which kplane signs tokens; None if only the API server issues tokens."""
    data_identity: str | None = None
    """Of the data in their etcd; None where kplane does not keep them, or could not look."""
    asleep_as: str | None = None
    """No API server runs: the version that one will have, or had; None while one runs."""


class Provisioner(Protocol):
    """One way to an API server. Every call may be repeated, and continues where an earlier one was cut off."""

    def address(self, control_plane: ControlPlane) -> str | None:
        """Name what the control plane claims for itself; None if others cannot claim it, or it is not known yet."""
        ...

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Have an API server run that answers. Raises ConditionError while it does not."""
        ...

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Tell whether there are data that kplane keeps for the control plane. Raises ConditionError where that is
        unknown."""
        ...

    async def volume(self, control_plane: ControlPlane) -> str | None:
        """Name the object of the management namespace that holds the data; None where no data go with the namespace."""
        ...

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Let data that are retained be deleted with their namespace. Raises ConditionError."""
        ...

    def usage(self, uid: str) -> Usage | None:
        """Return what the control plane keeps in the shared etcd; None if it keeps nothing there or was not measured
        yet."""
        ...

    def let_go(self, uid: str) -> None:
        """Repair nothing of this control plane between two calls of `ensure`: it is paused, or gone."""
        ...

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Make data the control plane's, and shut out the earlier one that had them, of this uid. Raises
        ConditionError."""
        ...

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Have what was issued be worth nothing, and what `ensure` started end. Raises ConditionError while not
        done."""
        ...

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """After `shut_down`: delete the data, or leave them in order, by the policy. Raises ConditionError while not
        done."""
        ...


class Movable(Provisioner, Protocol):
    """A way to an API server whose data can move to another home, or come from one.

    What is done in the other home takes the control plane as `ControlPlane.at` returns it.
    """

    @override
    async def ensure(self, control_plane: ControlPlane, *, writes: bool = True) -> Provision:
        """As `Provisioner.ensure`. Unless `writes`, the API server only reads."""
        ...

    async def prepare_home(self, control_plane: ControlPlane, *, begins_at: int | None, new: bool) -> None:
        """Have a place for the data, of which the revision is above `begins_at`, if that is given.

        `new` says that it never had data. Raises ConditionError while there is none.
        """
        ...

    def connect(self, control_plane: ControlPlane) -> AbstractAsyncContextManager[Place]:
        """Connect to the data, with all rights, as long as the context is open. Raises ConditionError."""
        ...

    async def set_writable(self, control_plane: ControlPlane, *, writable: bool) -> None:
        """Let the API server write, or only read, from the return on: etcd checks that. Raises ConditionError."""
        ...

    async def seal(self, control_plane: ControlPlane) -> None:
        """Let the API server of a former home not even read, from the return on. Raises ConditionError."""
        ...

    async def retire(self, control_plane: ControlPlane) -> None:
        """End the API server of a former home; the data stay. Raises ConditionError while not done."""
        ...


class Hibernating(Movable, Protocol):
    """A way to an API server that need not run at all times."""

    async def hibernate(self, control_plane: ControlPlane) -> Provision | None:
        """End the API server, and have everything in place that one needs. None: one has to run first.

        Raises ConditionError (SleepFailed) if it cannot be ended.
        """
        ...

    def is_ending(self, control_plane: ControlPlane) -> bool:
        """Tell whether the end of the API server has begun."""
        ...

    async def needs_api_server(self, control_plane: ControlPlane) -> str | None:
        """Say in a clause why the API server has to run at all times; None if it need not. Raises KeyspaceError."""
        ...


_PATIENCE_SECONDS: Final = 3.0
_CRASHES: Final = 2
"""Number of restarts after which a component that starts counts as crashing."""


async def check_ready(runtime: Runtime, component: str, *, what: str, published: bool) -> ComponentState:
    """Return the state of a component that is ready; `what` names it for people.

    Raises ConditionError while it is not ready: APIServerNotReady once published. Before that Provisioning while it
    starts, StartFailed if it ends by itself, and Failed if there is no program to run.

    Once published, wait a little for a start: after a restart of the operator it probes every component anew, and that
    must not make the control planes seem to be down.
    """
    if published:
        await _settle(runtime, component)
    state = runtime.state(component)
    if state.phase is not Phase.READY:
        told = f": {state.message}" if state.message else ""
        if state.unobtainable and not published:
            raise ConditionError(Reason.FAILED, f"{what} cannot be started{told}")
        reason = Reason.START_FAILED if is_crashing(state) else Reason.PROVISIONING
        reason = start_reason(reason, published=published)
        raise ConditionError(reason, f"waiting for {what}, which is {state.phase}{told}")
    return state


def is_crashing(state: ComponentState) -> bool:
    """Tell whether a component ends by itself, and does not only take its time to start.

    A component that ended more than once counts as crashing during its next start too. Otherwise the reason would
    change with each start.
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
    """Turn failures of an etcd into ConditionError, for a migration."""
    try:
        yield
    except DataError as error:
        raise ConditionError(Reason.MIGRATING, str(error)) from error


@contextmanager
def runtime_errors(reason: Reason) -> Iterator[None]:
    """Turn failures of the runtime and of the shared etcd into ConditionError with this reason."""
    try:
        yield
    except (WorkloadsError, KeyspaceError) as error:
        raise ConditionError(reason, str(error)) from error


@contextmanager
def start_errors(*, published: bool) -> Iterator[None]:
    """Turn failures of the runtime and of the shared etcd into ConditionError, on the way to an API server that serves.

    The reason is APIServerNotReady once published. Before that it names which of the two fails.
    """
    try:
        yield
    except KeyspaceError as error:
        raise ConditionError(start_reason(Reason.ETCD_UNAVAILABLE, published=published), str(error)) from error
    except WorkloadsError as error:
        raise ConditionError(start_reason(Reason.START_FAILED, published=published), str(error)) from error
