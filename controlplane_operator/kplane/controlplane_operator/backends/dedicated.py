"""Backend of control planes of mode Dedicated: each has its own etcd and kube-apiserver."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kplane.api import READY, ControlPlane, ControlPlaneClass, DeletionPolicy, find_condition
from kplane.api.reasons import Reason
from kplane.components.egress_proxy import PROXY_PROCESS, ProxyProgram
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url
from kplane.components.names import MOST_ETCD_MEMBERS, apiserver_name, etcd_name
from kplane.controlplane_operator.backends.api_server_runner import ApiServerRunner, Ground
from kplane.controlplane_operator.backends.base import Provision, VersionLag, data_errors, runtime_errors, start_errors
from kplane.controlplane_operator.backends.class_settings import scheduling_of, takes_our_tokens
from kplane.controlplane_operator.backends.lost_data import data_lost
from kplane.controlplane_operator.backends.members import (
    DedicatedEtcd,
    EtcdKeys,
    EtcdMembers,
    EtcdWithoutData,
    Founding,
)
from kplane.controlplane_operator.backends.restore import Restorer
from kplane.controlplane_operator.backends.served_data import given_up, revision_after_loss, served_data
from kplane.controlplane_operator.backends.trial import try_scheduling
from kplane.controlplane_operator.backends.versions import ApiServerPlanner
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.status.errors import ConditionError, start_reason
from kplane.controlplane_operator.tenant.bootstrap import TENANT_NAMESPACE
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.data import Client, DataError, DataLost, HeldCredentials, RevisionTooFar, Usage, identify
from kplane.data.fence import fence, is_fenced, lift_fence, seal
from kplane.data.follow import LARGEST_ANSWER, Place
from kplane.data.revision import MOST_RAISED, raise_revision
from kplane.pki.primitives import issue_client
from kplane.provider import ClusterConfig, NotFound
from kplane.provider.client.resources import SERVICE_ACCOUNTS
from kplane.workloads import Phase, Runtime, Scheduling

__all__ = ["DedicatedProvisioner"]

_ETCD_USER: Final = "kube-apiserver"
_ETCD_ROOT: Final = "root"
"""User of etcd that keeps all rights while a fence is up."""
_PREFIX: Final = "/registry"
_LOOK_SECONDS: Final = 3.0
"""Timeout in seconds of each call that reads the identity of the data."""
_FOLLOW_SECONDS: Final = 0.5
"""Delay in seconds before the pass in which etcd takes over the scheduling of the API server."""


@dataclass(frozen=True, slots=True)
class _Etcd:
    """Running etcd of a control plane."""

    ground: Ground
    keys: EtcdKeys
    members: EtcdMembers
    asked: int
    wanted: int
    scheduling: Scheduling | None


class DedicatedProvisioner:
    """Runs an etcd and an API server for each control plane."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        runtime: Runtime,
        quota_bytes: int,
        restorer: Restorer,
        proxy: ProxyProgram = PROXY_PROCESS,
    ) -> None:
        """Create the backend; `quota_bytes` is the size of a database at which its etcd refuses writes."""
        self._context = context
        self._restorer = restorer
        self._keys = TenantKeys(context)
        self._planner = ApiServerPlanner(context, runtime=runtime)
        self._api_servers = ApiServerRunner(context, runtime=runtime, keys=self._keys, proxy=proxy)
        self._runtime = runtime
        self._etcd = DedicatedEtcd(runtime, quota_bytes=quota_bytes)
        self._writable: set[tuple[str | None, int]] = set()
        """Homes, by uid and slot, whose etcd has no fence, as far as this operator knows."""

    def address(self, control_plane: ControlPlane) -> str | None:  # noqa: ARG002 - it is made for it
        """Return None: the etcd is not shared, so there is no address to claim."""
        return None

    async def ensure(self, control_plane: ControlPlane, *, writes: bool = True) -> Provision:
        """Run etcd, then the API server on it."""
        published = control_plane.status.endpoint is not None
        # Before the cut of a move, the data of the new home are a copy.
        founding = self._founding(control_plane) if writes else Founding()
        try:
            etcd = await self._run_etcd(control_plane, founding=founding)
        except ConditionError as error:
            if founding is None:
                await self._check_lost(control_plane, error)
            raise
        begins_at = founding.begins_at if founding is not None else None
        keys, members = etcd.keys, etcd.members
        urls = tuple(client_url(address) for address in members.voters)
        if not published and control_plane.status.restore is not None:
            pair = keys.client
            held = HeldCredentials(ca=keys.ca, certificate=pair.certificate, key=pair.key)
            await self._restorer.restore_data(control_plane, endpoint=urls[0], credentials=held, prefix=f"{_PREFIX}/")
            if begins_at is not None or not members.settled:
                raise ConditionError(Reason.PROVISIONING, "the data are restored; waiting until etcd has restarted")
        if founding is not None and writes:
            await self._complete_founding(control_plane, etcd=etcd, founding=founding)
        # A migration copies the identity of the data last. Until then, the data of this home have none.
        identity, revision = await self._identify(control_plane, etcd=etcd) if writes else (None, None)
        if not writes:
            await self.set_writable(control_plane, writable=False)
        elif _place(control_plane) not in self._writable:
            await self._lift_former_fence(control_plane)
        with start_errors(published=published):
            await self._api_servers.ensure(
                control_plane,
                ground=etcd.ground,
                etcd=EtcdAccess(urls, keys.ca, keys.client, components=tuple(_members(control_plane)[: etcd.wanted])),
                etcd_prefix=_PREFIX,
                etcd_shared=False,
            )
        provision = await self._api_servers.provision(control_plane, ground=etcd.ground, writes=writes)
        placed = self._runtime.placed(_api_server(control_plane), etcd.scheduling)
        # If the API server was placed before this operator started, no event triggers the pass in which etcd follows.
        follows = members.held and members.settled and placed
        signs = takes_our_tokens(etcd.ground.plan.chosen)
        return replace(
            provision,
            account_uid=partial(self._account_uid, provision.administrator) if signs else None,
            settled=provision.settled and members.settled,
            lag=_with_held(provision.lag, held=members.held and not placed)
            or members.lag
            or _more_than_asked(etcd.wanted, asked=etcd.asked),
            again_seconds=_FOLLOW_SECONDS if follows else members.again_seconds,
            data_identity=identity,
            revision=revision,
        )

    async def _account_uid(self, administrator: ClusterConfig, account: str) -> str | None:
        """Return the uid of a ServiceAccount of kplane, as the API server reports it; None if it does not exist.

        Raises ProviderError.
        """
        async with tenant_client(administrator, connections=self._context.connections) as client:
            try:
                service_account = await client.get(SERVICE_ACCOUNTS, account, namespace=TENANT_NAMESPACE)
            except NotFound:
                return None
        return str(service_account["metadata"]["uid"])

    async def _identify(self, control_plane: ControlPlane, *, etcd: _Etcd) -> tuple[str | None, int | None]:
        """Return the identity of the data, and the revision of etcd.

        Both are None if etcd does not answer while the published API server is ready.

        If the data are not the served ones, stops the API server and raises ConditionError (DataLost). Raises
        ConditionError (EtcdUnavailable, or APIServerNotReady once published) if etcd does not answer and the API server
        is not ready.
        """
        published, phase = control_plane.status.endpoint is not None, self._api_servers.phase(control_plane)
        served, accepted_loss = served_data(control_plane), given_up(control_plane)
        for address in etcd.members.voters:
            endpoint = client_url(address)
            async with _look_into(etcd, endpoint) as client:
                try:
                    identity = await identify(client, f"{_PREFIX}/", served=served, given_up=accepted_loss)
                    return identity, await client.revision()
                except DataLost as error:
                    if phase is not Phase.ABSENT:
                        with runtime_errors(Reason.DATA_LOST):
                            await self._api_servers.stop(control_plane)
                    raise data_lost(control_plane, told=f"etcd at {endpoint}: {error}") from error
                except DataError as error:
                    if address is etcd.members.voters[-1] and (not published or phase is not Phase.READY):
                        reason = start_reason(Reason.ETCD_UNAVAILABLE, published=published)
                        raise ConditionError(reason, str(error)) from error
        return None, None

    async def _check_lost(self, control_plane: ControlPlane, error: ConditionError) -> None:
        """Stop the API server and raise ConditionError (DataLost) if etcd does not run because its data are lost.

        `error` is the reason why etcd does not run. A lost etcd keeps that condition while its program starts again.
        """
        ready = find_condition(control_plane.status.conditions, READY)
        if not isinstance(error, EtcdWithoutData):
            if ready is not None and ready.reason == Reason.DATA_LOST:
                raise ConditionError(Reason.DATA_LOST, ready.message) from error
            return
        if self._api_servers.phase(control_plane) is not Phase.ABSENT:
            with runtime_errors(Reason.DATA_LOST):
                await self._api_servers.stop(control_plane)
        raise data_lost(control_plane, told=error.message) from error

    async def _complete_founding(self, control_plane: ControlPlane, *, etcd: _Etcd, founding: Founding) -> None:
        """Have etcd begin at the revision of `founding`, and then not begin again without data.

        After an accepted loss, that revision is above all revisions that clients saw, so that their watches get 410. An
        empty etcd is made again, and any other one is raised by writes. Raises ConditionError until that is done.
        """
        reason = start_reason(Reason.PROVISIONING, published=control_plane.status.endpoint is not None)
        begins_at = founding.begins_at
        if begins_at is not None:
            try:
                async with _look_into(etcd, client_url(etcd.members.voters[0])) as client:
                    revision, keys = await client.revision(), await client.count(f"{_PREFIX}/")
                    if revision < begins_at and self._api_servers.phase(control_plane) is not Phase.ABSENT:
                        with runtime_errors(reason):
                            await self._api_servers.stop(control_plane)
                    if revision < begins_at and keys:
                        # A later pass raises the rest.
                        revision = await raise_revision(client, above=min(begins_at - 1, revision + MOST_RAISED - 1))
                    if revision >= begins_at:
                        # Clients may ask for earlier revisions, at which this etcd lacks the data.
                        await client.compact(begins_at)
            except DataError as error:
                raise ConditionError(reason, str(error)) from error
            if revision < begins_at:
                if not keys:
                    await self._delete_etcd(control_plane, reason=reason)
                raise ConditionError(reason, f"after the loss, etcd at revision {revision} is raised to {begins_at}")
        with runtime_errors(reason):
            if await self._etcd.confirm(control_plane, founding=founding):
                raise ConditionError(reason, "etcd has begun; waiting until it has restarted")

    async def _delete_etcd(self, control_plane: ControlPlane, *, reason: Reason) -> None:
        """Delete all members of etcd with their data."""
        names = self._runtime.names()
        with runtime_errors(reason):
            for member in _members(control_plane):
                if member in names:
                    await self._runtime.delete(member)

    async def _run_etcd(self, control_plane: ControlPlane, *, founding: Founding | None) -> _Etcd:
        """Run etcd, with keys and addresses for the API server on it. Raises ConditionError until etcd is ready."""
        published = control_plane.status.endpoint is not None
        plan = await self._planner.plan(control_plane)
        requested = _members_asked(control_plane, chosen=plan.chosen)
        scheduling = scheduling_of(plan.chosen)
        with start_errors(published=published):
            if control_plane.status.restore is not None and not published:
                await self._restorer.restore_keys(control_plane)
            authorities = await self._keys.authorities(control_plane, has_data=self.has_data)
            target = self._etcd.wanted(control_plane, asked=requested)
            addresses = await self._etcd.reserve(control_plane, wanted=target)
            ground = await self._api_servers.prepare(
                control_plane,
                plan=plan,
                authorities=authorities,
                etcd_authority=authorities.etcd,
                etcd_user=_ETCD_USER,
                etcd_hosts=(*dict.fromkeys(address.host for address in addresses), "localhost"),
            )
            certificates = ground.certificates
            if certificates.etcd_server is None:
                raise ConditionError(Reason.FAILED, "the etcd of this control plane has no certificate")
            keys = EtcdKeys(authorities.etcd_trust, certificates.etcd_server, certificates.etcd_client)
            members = await self._etcd.ensure(
                control_plane,
                addresses=addresses,
                wanted=target,
                keys=keys,
                trial=try_scheduling(self._runtime, _api_server(control_plane), scheduling),
                founding=founding,
            )
        return _Etcd(ground, keys, members, asked=requested, wanted=target, scheduling=scheduling)

    async def prepare_home(self, control_plane: ControlPlane, *, begins_at: int | None, new: bool) -> None:
        """Run all members of etcd; a new etcd begins at revision `begins_at`.

        The description of an existing etcd does not change, because the program that sets the first revision is part of
        the operator's image.

        Raises ConditionError until etcd is ready, and RevisionTooFar if an existing etcd cannot be raised to that
        revision.
        """
        etcd = await self._run_etcd(control_plane, founding=Founding(begins_at if new else None))
        if etcd.members.lag is not None:
            raise ConditionError(Reason.MIGRATING, etcd.members.lag.message)
        if not etcd.members.settled:
            raise ConditionError(Reason.MIGRATING, "waiting until etcd has restarted")
        if begins_at is not None:
            async with self.connect(control_plane) as place:
                try:
                    await raise_revision(place.client, above=begins_at)
                except RevisionTooFar:
                    raise  # a new etcd could begin there
                except DataError as error:
                    raise ConditionError(Reason.MIGRATING, str(error)) from error

    @contextlib.asynccontextmanager
    async def connect(self, control_plane: ControlPlane) -> AsyncIterator[Place]:
        """Connect to etcd as user root, which a fence does not restrict.

        Raises ConditionError if no member is ready.
        """
        ready = [name for name in _members(control_plane) if self._runtime.state(name).phase is Phase.READY]
        authorities = await self._keys.present(control_plane)
        if not ready or authorities is None:
            raise ConditionError(Reason.MIGRATING, "waiting for etcd")
        with runtime_errors(Reason.MIGRATING):
            address = await self._runtime.reserve(ready[0], ports=ETCD_PORTS)
        pair = issue_client(authorities.etcd, user=_ETCD_ROOT)
        credentials = HeldCredentials(ca=authorities.etcd_trust, certificate=pair.certificate, key=pair.key)
        async with Client(client_url(address), credentials=credentials, receive_at_most=LARGEST_ANSWER) as client:
            yield Place(client, f"{_PREFIX}/")

    async def set_writable(self, control_plane: ControlPlane, *, writable: bool) -> None:
        """Lift the fence of etcd, or raise it. Without a fence, etcd has no access control."""
        self._writable.discard(_place(control_plane))
        async with self.connect(control_plane) as place:
            with data_errors():
                if not writable:
                    await fence(place.client, user=_ETCD_USER)
                    return
                if await is_fenced(place.client):
                    await lift_fence(place.client)
        self._writable.add(_place(control_plane))

    async def seal(self, control_plane: ControlPlane) -> None:
        """Revoke the API server's right to read; the fence must be up."""
        async with self.connect(control_plane) as place:
            with data_errors():
                await seal(place.client, user=_ETCD_USER)

    async def _lift_former_fence(self, control_plane: ControlPlane) -> None:
        """Lift a fence that remains from an interrupted migration. Raises ConditionError during a migration."""
        try:
            await self.set_writable(control_plane, writable=True)
        except ConditionError:
            # Without a migration there is most likely no fence. A failure here must not delay the API server.
            if control_plane.status.migration is not None:
                raise

    async def retire(self, control_plane: ControlPlane) -> None:
        """Delete the API server; etcd and its fence stay."""
        with runtime_errors(Reason.MIGRATING):
            await self._api_servers.delete(control_plane)

    def _founding(self, control_plane: ControlPlane) -> Founding | None:
        """Return the permission to begin without data; None if data were served, and their loss is not accepted."""
        if served_data(control_plane) is not None:
            return None
        status = control_plane.status
        if status.endpoint is None and status.data_identity is None:
            return Founding(self._begins_at(control_plane))
        return Founding(revision_after_loss(control_plane), after=control_plane.data_loss_acceptance)

    def _begins_at(self, control_plane: ControlPlane) -> int | None:
        """Return the revision at which the etcd of a restore begins; None once the data are restored.

        The program that sets the first revision is part of the operator's image. With a lasting setting, etcd would
        restart at each upgrade of the operator.
        """
        restore = control_plane.status.restore
        if restore is None or control_plane.status.endpoint is not None or self._restorer.has_restored(control_plane):
            return None
        return restore.begins_at

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Return whether the runtime has an etcd of the control plane, running or stopped."""
        names = self._runtime.names()
        return any(member in names for member in _members(control_plane))

    async def volume(self, control_plane: ControlPlane) -> str | None:
        """Return the names of etcd's PersistentVolumeClaims; None if etcd runs as processes."""
        with runtime_errors(Reason.NAMESPACE_DELETED):
            claims = [await self._runtime.volume(member) for member in _members(control_plane)]
        return ", ".join(claim for claim in claims if claim is not None) or None

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Allow the deletion of etcd's PersistentVolumeClaims together with their namespace."""
        with runtime_errors(Reason.DELETION_FAILED):
            for member in _members(control_plane):
                await self._runtime.unprotect(member)

    def usage(self, uid: str) -> Usage | None:  # noqa: ARG002 - of none
        """Return None: the control plane has no keys in the shared etcd."""
        return None

    def let_go(self, uid: str) -> None:
        """Discard the state of a control plane in memory."""
        self._restorer.forget(uid)
        self._writable -= {place for place in self._writable if place[0] == uid}

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Do nothing: only the control plane's own API server reaches its etcd, and the next API server replaces it."""

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Delete the API server."""
        with runtime_errors(Reason.DELETION_FAILED):
            await self._api_servers.delete(control_plane)

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """Stop etcd; delete its data too if the policy is Destroy."""
        with runtime_errors(Reason.DELETION_FAILED):
            for member in _members(control_plane):
                await (self._runtime.delete(member) if policy is DeletionPolicy.DESTROY else self._runtime.stop(member))


def _members_asked(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> int:
    """Return the number of members that spec or class ask for."""
    own = control_plane.spec.dedicated.etcd if control_plane.spec.dedicated is not None else None
    settings = own or (chosen.spec.etcd if chosen is not None else None)
    return settings.members if settings is not None else 1


def _api_server(control_plane: ControlPlane) -> str:
    return apiserver_name(control_plane.name, slot=control_plane.home.slot)


def _with_held(lag: VersionLag | None, *, held: bool) -> VersionLag | None:
    """Add to the lag of the API server that etcd waits for the scheduling of the API server."""
    if not held or (lag is not None and lag.reason is not Reason.ROLLING_OUT):
        return lag
    message = "etcd keeps its nodes until kube-apiserver runs with the pod settings of the class"
    return VersionLag(Reason.ROLLING_OUT, f"{lag.message}; {message}" if lag is not None else message)


def _look_into(etcd: _Etcd, endpoint: str) -> Client:
    """Return a client of a member that has the rights of root and short time-outs."""
    pair = issue_client(etcd.ground.authorities.etcd, user=_ETCD_ROOT)
    credentials = HeldCredentials(ca=etcd.keys.ca, certificate=pair.certificate, key=pair.key)
    return Client(endpoint, credentials=credentials, timeout_seconds=_LOOK_SECONDS)


def _place(control_plane: ControlPlane) -> tuple[str | None, int]:
    return control_plane.metadata.uid, control_plane.home.slot


def _members(control_plane: ControlPlane) -> list[str]:
    return [etcd_name(control_plane.name, number, slot=control_plane.home.slot) for number in range(MOST_ETCD_MEMBERS)]


def _more_than_asked(wanted: int, *, asked: int) -> VersionLag | None:
    if wanted <= asked:
        return None
    return VersionLag(
        Reason.ETCD_MEMBERS_KEPT,
        f"etcd has {wanted} members, and {asked} is asked for: kplane takes no member away; set the number to {wanted}",
    )
