"""Backend of control planes of mode Virtual: each has its own kube-apiserver and key prefix in a shared etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

from kplane.api import (
    READY,
    AuthModel,
    AuthSpec,
    ControlPlane,
    ControlPlaneMode,
    DeletionPolicy,
    find_condition,
    is_true,
)
from kplane.api.conditions import HIBERNATED
from kplane.api.reasons import Reason
from kplane.components.api_server import API_SERVER
from kplane.components.egress_proxy import PROXY_PROCESS, ProxyProgram
from kplane.components.etcd import EtcdAccess
from kplane.components.names import template_name
from kplane.controlplane_operator.backends.api_server_runner import ApiServerRunner, Ground
from kplane.controlplane_operator.backends.base import AccountUid, Provision, data_errors, runtime_errors, start_errors
from kplane.controlplane_operator.backends.class_settings import takes_our_tokens
from kplane.controlplane_operator.backends.lost_data import data_lost
from kplane.controlplane_operator.backends.prefix_claims import PrefixClaims, etcd_user, owner_of, prefix_of, whose
from kplane.controlplane_operator.backends.restore import Restorer
from kplane.controlplane_operator.backends.served_data import (
    given_up,
    recorded_revision,
    revision_after_loss,
    served_data,
)
from kplane.controlplane_operator.backends.templates import Templates
from kplane.controlplane_operator.backends.versions import ApiServerPlan, ApiServerPlanner
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.errors import KeyspaceError, PrefixLost, PrefixNotOwned, ValueNotRead
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.access_control import AccessControl
from kplane.controlplane_operator.shared_etcd.alarms import SpaceAlarms
from kplane.controlplane_operator.shared_etcd.health import EtcdHealth
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.controlplane_operator.shared_etcd.learners import LearnerPromoter
from kplane.controlplane_operator.shared_etcd.metering import StorageMeter
from kplane.controlplane_operator.shared_etcd.quota import recorded
from kplane.controlplane_operator.status.errors import ConditionError, start_reason
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, TENANT_NAMESPACE
from kplane.controlplane_operator.watch.addresses import etcd_address
from kplane.controlplane_operator.watch.cache import Object
from kplane.data import Client, Credentials, DataError, RevisionTooFar, Usage, owned_by
from kplane.data.follow import LARGEST_ANSWER, Place
from kplane.data.revision import raise_revision
from kplane.workloads import Phase, Runtime

__all__ = ["VirtualProvisioner"]


@dataclass(frozen=True, slots=True)
class _Etcd:
    """Shared etcd, with its background tasks."""

    shared: SharedEtcd
    access: AccessControl
    claims: PrefixClaims
    health: EtcdHealth
    meter: StorageMeter
    templates: Templates


class VirtualProvisioner:
    """Runs API servers on a shared etcd."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        runtime: Runtime,
        shared_etcd: SharedEtcd | None,
        restorer: Restorer,
        proxy: ProxyProgram = PROXY_PROCESS,
        data_store: str | None = None,
        without: ConditionError | None = None,
        makers: set[str] | None = None,
    ) -> None:
        """Create the backend; `data_store` is the name of the etcd in homes, None for the first one.

        If there is no etcd, operations raise `without`. `makers` has the components that make templates now, in any
        etcd.
        """
        self._makers = makers if makers is not None else set()
        self._context = context
        self._data_store = data_store
        self._without = without or ConditionError(Reason.FAILED, "this operator has no shared etcd")
        self._restorer = restorer
        self._runtime = runtime
        self._keys = TenantKeys(context)
        self._planner = ApiServerPlanner(context, runtime=runtime)
        self._api_servers = ApiServerRunner(context, runtime=runtime, keys=self._keys, proxy=proxy)
        self._etcd = self._parts(shared_etcd) if shared_etcd is not None else None

    def _parts(self, shared: SharedEtcd) -> _Etcd:
        access = AccessControl(shared)
        meter = StorageMeter(
            shared,
            tenants=self._tenants,
            is_full=self._is_full,
            measured=self._measured,
            identified=self._identified,
        )
        return _Etcd(
            shared,
            access,
            PrefixClaims(shared, keys=self._keys, access=access),
            EtcdHealth(shared),
            meter,
            Templates(
                self._context,
                runtime=self._runtime,
                shared=shared,
                access=access,
                makers=self._makers,
                copied=meter.know,
            ),
        )

    def problem(self) -> str | None:
        """Return the problem that the last check of the shared etcd found, for /readyz; None if there is none."""
        return (self._etcd.health.problem or self._etcd.access.problem) if self._etcd is not None else None

    async def run(self) -> None:
        """Check the shared etcd, repair its access control, measure tenants, and make templates, until cancelled.

        Also disarms the alarm NOSPACE, and promotes learners if the etcd runs in this cluster. Returns at once if there
        is no shared etcd.
        """
        if self._etcd is None:
            return
        async with asyncio.TaskGroup() as group:
            for part in (self._etcd.health, self._etcd.access, self._etcd.meter, self._etcd.templates):
                group.create_task(part.run())
            group.create_task(SpaceAlarms(self._etcd.shared).run())
            if self._etcd.shared.namespace is not None:
                group.create_task(LearnerPromoter(self._etcd.shared).run())

    def address(self, control_plane: ControlPlane) -> str | None:
        """Return the address of the control plane's path in etcd, which no other control plane may use."""
        # Use the recorded path, because the spec may have been edited a moment earlier.
        return etcd_address(control_plane.status.cluster_path or control_plane.cluster_path)

    async def ensure(self, control_plane: ControlPlane, *, writes: bool = True) -> Provision:
        """Grant the key prefix to the control plane's user, and run the API server."""
        etcd = self._required()
        prefix, user = key_prefix(control_plane.cluster_path), etcd_user(control_plane.metadata.uid)
        published = control_plane.status.endpoint is not None
        ground, fresh = await self._prepare(control_plane)
        # A migration copies the identity of the data last. Until then, the data of this home have none.
        identity = await self._identify(control_plane) if writes else None
        with start_errors(published=published):
            await etcd.access.grant(user, prefix=prefix, owner=owner_of(control_plane), read_only=not writes)
            await self._api_servers.ensure(
                control_plane,
                ground=ground,
                etcd=EtcdAccess(
                    (etcd.shared.endpoint,),
                    etcd.shared.authority.certificate,
                    ground.certificates.etcd_client,
                    namespace=etcd.shared.namespace,
                ),
                etcd_prefix=prefix.rstrip("/"),
                etcd_shared=True,
            )
        provision = await self._api_servers.provision(control_plane, ground=ground, fresh=fresh, writes=writes)
        accounts = self._accounts(control_plane, plan=ground.plan)
        revision = await self._revision() if writes else None
        return replace(provision, fresh=fresh, account_uid=accounts, data_identity=identity, revision=revision)

    async def prepare_home(self, control_plane: ControlPlane, *, begins_at: int | None, new: bool) -> None:
        """Claim the prefix, and raise the revision of the shared etcd above `begins_at`."""
        etcd = self._required()
        if new:
            with runtime_errors(Reason.MIGRATING):
                await self._check_version(etcd.shared)
        await etcd.claims.claim(control_plane)
        if begins_at is not None:
            async with self.connect(control_plane) as place:
                with runtime_errors(Reason.MIGRATING), data_errors():
                    await raise_revision(place.client, above=begins_at)

    @contextlib.asynccontextmanager
    async def connect(self, control_plane: ControlPlane) -> AsyncIterator[Place]:
        """Connect to the prefix as administrator of the etcd; each write is conditional on the owner of the prefix."""
        shared, prefix = self._required().shared, prefix_of(control_plane)
        with runtime_errors(Reason.MIGRATING):
            credentials = Credentials.in_directory(shared.keyspace.credentials)
        # A separate connection, so that a copy does not delay calls of reconcilers.
        async with Client(shared.endpoint, credentials=credentials, receive_at_most=LARGEST_ANSWER) as client:
            yield Place(client, prefix, only_if=(owned_by(prefix, owner_of(control_plane)),))

    async def set_writable(self, control_plane: ControlPlane, *, writable: bool) -> None:
        """Grant the control plane's user in etcd the right to write, or only to read."""
        with runtime_errors(Reason.MIGRATING):
            await self._required().access.grant(
                etcd_user(control_plane.metadata.uid),
                prefix=prefix_of(control_plane),
                owner=owner_of(control_plane),
                read_only=not writable,
            )

    async def seal(self, control_plane: ControlPlane) -> None:
        """Delete the control plane's user in etcd; the next start of an API server creates the user again."""
        with runtime_errors(Reason.MIGRATING):
            await self._required().access.revoke(etcd_user(control_plane.metadata.uid))

    async def retire(self, control_plane: ControlPlane) -> None:
        """Delete the API server."""
        with runtime_errors(Reason.MIGRATING):
            await self._api_servers.delete(control_plane)

    async def hibernate(self, control_plane: ControlPlane) -> Provision | None:
        """Stop the API server, and prepare everything that the next API server needs.

        Returns None if an API server has to run first. For a publication, a copy of a template needs no API server.
        Raises ConditionError (SleepFailed) if the API server cannot be stopped.
        """
        etcd = self._required()
        published = control_plane.status.endpoint is not None
        ground, fresh = await self._prepare(control_plane)
        identity = await self._identify(control_plane)
        if not published:
            with start_errors(published=False):
                if not fresh or await self.needs_api_server(control_plane) is not None:
                    return None
        with runtime_errors(Reason.SLEEP_FAILED) if published else start_errors(published=False):
            begins = published and not is_true(control_plane.status.conditions, HIBERNATED)
            # The runtime may not report yet a component that it started a moment ago.
            if begins or self._api_servers.phase(control_plane) is not Phase.ABSENT:
                await self._api_servers.stop(control_plane)
        etcd.access.forget(etcd_user(control_plane.metadata.uid))
        return replace(
            ground.provision(asleep_as=control_plane.status.version or await self._version(ground.plan)),
            lag=ground.plan.refused,
            fresh=fresh,
            data_identity=identity,
            account_uid=self._accounts(control_plane, plan=ground.plan),
        )

    def is_ending(self, control_plane: ControlPlane) -> bool:
        """Return whether the API server is stopping or absent."""
        return self._api_servers.phase(control_plane) in {Phase.STOPPING, Phase.ABSENT}

    async def needs_api_server(self, control_plane: ControlPlane) -> str | None:
        """Return the reason, as a clause, why the API server has to run at all times; None if it may sleep.

        Raises KeyspaceError.
        """
        plan = await self._planner.plan(control_plane)
        if not takes_our_tokens(plan.chosen):
            return "flags of its class decide about tokens, so that only its API server can issue them"
        auth = plan.chosen.spec.auth if plan.chosen is not None else AuthSpec()
        if auth.model is AuthModel.X509:
            return None
        try:
            uid = await self._required().shared.keyspace.uid(prefix_of(control_plane), _account_key(ADMIN_ACCOUNT.name))
        except ValueNotRead:
            uid = None
        if uid is None:
            return "kplane cannot read in etcd for whom it issues tokens, so that only its API server can issue them"
        return None

    async def _prepare(self, control_plane: ControlPlane) -> tuple[Ground, bool]:
        """Prepare the prefix, keys, address and certificates of the API server.

        Also returns whether the keys are a copy of a template made for this control plane.
        """
        etcd = self._required()
        published = control_plane.status.endpoint is not None
        if not published:
            # Running control planes continue, because to stop them would isolate tenants no better.
            with start_errors(published=False):
                await self._check_version(etcd.shared)
        await etcd.claims.claim(control_plane)
        plan = await self._planner.plan(control_plane)
        with start_errors(published=published):
            restored = control_plane.status.restore is not None and not published
            if restored:
                await self._restorer.restore_keys(control_plane)
            authorities = await self._keys.authorities(control_plane, has_data=self.has_data)
            ground = await self._api_servers.prepare(
                control_plane,
                plan=plan,
                authorities=authorities,
                etcd_authority=etcd.shared.authority,
                etcd_user=etcd_user(control_plane.metadata.uid),
            )
            if restored:
                await self._restorer.restore_data(
                    control_plane,
                    endpoint=etcd.shared.endpoint,
                    credentials=Credentials.in_directory(etcd.shared.keyspace.credentials),
                    prefix=prefix_of(control_plane),
                )
            fresh = not published and not restored and await self._copy(control_plane, ground=ground)
            return ground, fresh

    async def _identify(self, control_plane: ControlPlane) -> str | None:
        """Return the identity of the data; None if etcd does not answer while the published API server is ready.

        If the data are not the served ones, stops the API server and raises ConditionError (DataLost). Raises
        ConditionError (EtcdUnavailable, or APIServerNotReady once published) if etcd does not answer and the API server
        is not ready.
        """
        published, phase = control_plane.status.endpoint is not None, self._api_servers.phase(control_plane)
        await self._raise_after_loss(control_plane)
        with start_errors(published=published):
            try:
                return await self._required().shared.keyspace.identify(
                    prefix_of(control_plane),
                    owner=owner_of(control_plane),
                    served=served_data(control_plane),
                    given_up=given_up(control_plane),
                )
            except PrefixLost as error:
                if phase is not Phase.ABSENT:
                    await self._api_servers.stop(control_plane)
                # The owner key may be lost with the data. After this call, the next pass claims the prefix, which
                # writes the key.
                self._required().access.forget(etcd_user(control_plane.metadata.uid))
                raise data_lost(control_plane, told=str(error)) from error
            except KeyspaceError:
                if not published or phase is not Phase.READY:
                    raise
                return None

    async def _raise_after_loss(self, control_plane: ControlPlane) -> None:
        """Raise the shared etcd above all revisions that clients saw before an accepted loss, if it is behind.

        An etcd that only lost the keys of this control plane is not behind. Raises ConditionError (DataLost) if too
        many revisions are lacking, and ConditionError (EtcdUnavailable or APIServerNotReady) if etcd does not answer.
        """
        begins_at, recorded = revision_after_loss(control_plane), recorded_revision(control_plane)
        if not control_plane.is_data_loss_accepted or begins_at is None or recorded is None:
            return
        try:
            async with self.connect(control_plane) as place:
                if await place.client.revision() < recorded:
                    await raise_revision(place.client, above=begins_at - 1)
                    # Clients may ask for earlier revisions, at which this etcd lacks the data.
                    await place.client.compact(begins_at)
        except RevisionTooFar as error:
            raise ConditionError(
                Reason.DATA_LOST,
                f"failed to continue above the revisions that clients saw: {error}; restore the shared etcd with a"
                " larger etcd.restore.bumpRevision",
            ) from error
        except DataError as error:
            published = control_plane.status.endpoint is not None
            raise ConditionError(start_reason(Reason.ETCD_UNAVAILABLE, published=published), str(error)) from error

    async def _revision(self) -> int | None:
        """Return the revision of the shared etcd; None if it does not answer."""
        try:
            return await self._required().shared.keyspace.revision()
        except KeyspaceError:
            return None

    def _accounts(self, control_plane: ControlPlane, *, plan: ApiServerPlan) -> AccountUid | None:
        """Return the reader of ServiceAccount uids; None if the API server does not accept tokens that kplane signs."""
        return partial(self._account_uid, prefix_of(control_plane)) if takes_our_tokens(plan.chosen) else None

    async def _version(self, plan: ApiServerPlan) -> str:
        """Return the version that an API server of this plan will report; "unknown" if the runtime cannot tell."""
        version = plan.version or await self._runtime.version(API_SERVER)
        return f"v{version.removeprefix('v')}" if version is not None else "unknown"

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Return whether the control plane has keys; False without a shared etcd."""
        return self._etcd is not None and await self._etcd.claims.has_data(control_plane)

    async def volume(self, control_plane: ControlPlane) -> str | None:  # noqa: ARG002 - of none
        """Return None: the data are in the shared etcd, not in the namespace."""
        return None

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Do nothing: the namespace holds no data."""

    def usage(self, uid: str) -> Usage | None:
        """Return the last measurement of the control plane."""
        return self._etcd.meter.usage(uid) if self._etcd is not None else None

    def let_go(self, uid: str) -> None:
        """Stop repairs of the rights of the control plane's user in etcd, and discard its state in memory."""
        self._restorer.forget(uid)
        if self._etcd is not None:
            self._etcd.access.forget(etcd_user(uid))
            self._etcd.templates.forget(uid)

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Revoke the former user in etcd, whose API server may still run, and record the new owner of the keys."""
        await self._required().claims.take_over(control_plane, former=former)

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Revoke the control plane's access to the etcd, and delete the API server."""
        if await self._was_never_made(control_plane):
            return
        etcd = self._required()
        with runtime_errors(Reason.DELETION_FAILED):
            # Revoke first, because etcd checks the user at each request. So an API server that cannot be stopped, for
            # example on a lost node, writes no more keys.
            await etcd.access.revoke(etcd_user(control_plane.metadata.uid))
            await self._api_servers.delete(control_plane)
            if (maker := template_name(control_plane.name)) in self._runtime.names(prefix=maker):
                # Control planes that wait for that template have it made beside another control plane.
                await self._runtime.delete(maker)

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """Delete the control plane's keys if the policy is Destroy.

        Keys of another owner need an annotation that names them.
        """
        if await self._was_never_made(control_plane):
            return
        claims = self._required().claims
        with runtime_errors(Reason.DELETION_FAILED):
            if policy is DeletionPolicy.RETAIN:
                await claims.release(control_plane)
                return
            try:
                deleted = await claims.destroy(control_plane)
            except PrefixNotOwned as error:
                self._context.events.record(
                    control_plane, reason="DataLeft", message=f"left the data below {whose(error)}", warning=True
                )
                return
        if deleted:
            self._context.metrics.keys_deleted(deleted)
            self._context.events.record(
                control_plane, reason="DataDeleted", message=f"deleted {deleted} keys, none is left"
            )

    async def _copy(self, control_plane: ControlPlane, *, ground: Ground) -> bool:
        """Copy the keys of a new control plane from a template; return whether its keys are a copy."""
        return await self._required().templates.copy(
            control_plane,
            prefix=prefix_of(control_plane),
            owner=owner_of(control_plane),
            user=etcd_user(control_plane.metadata.uid),
            plan=ground.plan,
            service_cidr=ground.service_cidr,
        )

    async def _account_uid(self, prefix: str, account: str) -> str | None:
        """Read the uid of a ServiceAccount of kplane from etcd; None if it does not exist, or cannot be read."""
        try:
            return await self._required().shared.keyspace.uid(prefix, _account_key(account))
        except KeyspaceError:
            # The ServiceAccount may be encrypted: only the API server can read its uid then.
            return None

    def _tenants(self) -> dict[str, str]:
        """Return the prefixes of all published control planes that use this etcd, by uid."""
        prefixes = {}
        for obj in self._context.stores.control_planes:
            status = obj.get("status") or {}
            home = status.get("home") or {}
            here = home.get("mode") != ControlPlaneMode.DEDICATED and home.get("dataStore") == self._data_store
            if "endpointRef" not in obj["spec"] and status.get("clusterPath") and status.get("endpoint") and here:
                with contextlib.suppress(KeyspaceError):
                    prefixes[obj["metadata"]["uid"]] = key_prefix(status["clusterPath"])
        return prefixes

    def _is_full(self, uid: str) -> bool:
        """Return whether the status of the control plane with this uid records a full storage quota."""
        storages = (as_recorded(obj).status.storage for obj in self._context.stores.control_planes.by("uid", uid))
        return any(storage is not None and storage.is_full for storage in storages)

    def _measured(self, uid: str) -> None:
        """Enqueue the control plane if its status has to record the new measurement."""
        usage = self.usage(uid)
        for obj in self._context.stores.control_planes.by("uid", uid):
            storage = as_recorded(obj).status.storage
            quota_bytes = storage.quota_bytes if storage is not None else None
            is_empty = usage is not None and usage.keys == 0 and not _is_data_lost(obj)
            if is_empty or recorded(storage, usage=usage, quota_bytes=quota_bytes) != storage:
                self._context.triggers.control_planes.add(obj["metadata"]["name"])

    def _identified(self, uid: str, identity: str | None) -> None:
        """Enqueue the control plane if its data do not have the identity in its status."""
        for obj in self._context.stores.control_planes.by("uid", uid):
            expected = (obj.get("status") or {}).get("dataIdentity")
            if expected not in {None, identity} and not _is_data_lost(obj):
                self._context.triggers.control_planes.add(obj["metadata"]["name"])

    async def _check_version(self, shared: SharedEtcd) -> None:
        """Raise ConditionError (EtcdRefused) if the version of etcd is refused, and KeyspaceError without an answer."""
        refusal = await shared.refusal()
        if refusal is not None:
            raise ConditionError(Reason.ETCD_REFUSED, refusal)

    async def _was_never_made(self, control_plane: ControlPlane) -> bool:
        """Return whether the control plane has no resources in etcd: no shared etcd, no publication and no keys.

        The operator creates keys before it uses the etcd.
        """
        if self._etcd is not None or control_plane.status.endpoint is not None:
            return False
        return not await self._keys.exist(control_plane)

    def _required(self) -> _Etcd:
        if self._etcd is None:
            raise ConditionError(self._without.reason, self._without.message)
        return self._etcd


def _is_data_lost(obj: Object) -> bool:
    """Return whether condition Ready reports the loss of the data already."""
    ready = find_condition(as_recorded(obj).status.conditions, READY)
    return ready is not None and ready.reason == Reason.DATA_LOST


def _account_key(account: str) -> str:
    return f"serviceaccounts/{TENANT_NAMESPACE}/{account}"
