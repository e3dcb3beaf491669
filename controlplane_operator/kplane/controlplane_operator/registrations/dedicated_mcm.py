"""Dedicated mcm: runs an mcm for each registration of mode Dedicated, in the namespace of its control plane.

Shared and dedicated mcm hand over through `status.instance`: an mcm announces its instance after the instance of the
other mode is gone. This module runs the dedicated mcm while `status.mode` is Dedicated. Before an mcm starts in another
namespace, this module stops the former mcm and waits for its end. An mcm that stops confirms the end of its instance.
If the mcm cannot, this module removes the instance from the status.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.api import ConditionStatus, ControlPlane, RegistrationMode, find_condition
from kplane.api.conditions import DEDICATED_READY
from kplane.api.names import management_namespace
from kplane.api.reasons import Reason
from kplane.components.mcm import MCM_PORTS, McmProgram, mcm_component
from kplane.components.names import MCM_PREFIX, apiserver_name, mark_of, mcm_mark, mcm_name, place
from kplane.controlplane_operator.backends.class_settings import scheduling_of
from kplane.controlplane_operator.backends.trial import SchedulingTrial, try_scheduling
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.grants import Account
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.errors import management_refusal
from kplane.controlplane_operator.status.partial import PartialRegistration, as_recorded
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.controlplane_operator.watch.cache import Key, UIDTracker
from kplane.controlplane_operator.watch.predicates import is_hibernated
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import ClusterConfig, Conflict, Invalid, Result
from kplane.provider.errors import Forbidden
from kplane.provider.logs import log_fields
from kplane.workloads import File, Phase, Runtime, WorkloadsError

__all__ = ["DedicatedMcmReconciler", "DedicatedMcms", "account_of", "eldest_of"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 600.0
_RETRY_SECONDS: Final = 5.0
_TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
_BEFORE_READY: Final = frozenset({Phase.ABSENT, Phase.STARTING})
"""Phases of a component that is starting. The cluster may report a new component with a delay."""
_ENDING: Final = "its mcm ends, and with it what that runs"


def eldest_of(mark: str, *, stores: Stores) -> str | None:
    """Return the uid of the eldest registration whose mcm has this mark; None if all of them are gone."""
    metadata_items = [obj["metadata"] for obj in stores.registrations.by("mcm", mark)]
    return min(
        ((metadata.get("creationTimestamp", ""), metadata["uid"]) for metadata in metadata_items), default=("", None)
    )[1]


def account_of(component: str) -> Account:
    """Return the ServiceAccount of an mcm, which has the namespace and name of the component."""
    placement = place(component)
    return Account(placement.namespace, placement.name)


class DedicatedMcms:
    """Components of the dedicated mcm that exist."""

    def __init__(self, runtime: Runtime, *, identities: McmIdentities) -> None:
        self._runtime = runtime
        self._identities = identities

    def of(self, uid: str) -> list[str]:
        """Return the names of the components of a registration: several while its mcm moves."""
        mark = mcm_mark(uid)
        return [name for name in self._runtime.names(prefix=f"{MCM_PREFIX}{mark}") if mark_of(name) == mark]

    def at(self, control_plane: str) -> list[str]:
        """Return the names of all components in the namespace of a control plane."""
        namespace, names = management_namespace(control_plane), self._runtime.names(prefix=MCM_PREFIX)
        return [name for name in names if mark_of(name) is not None and place(name).namespace == namespace]

    async def end(self, component: str) -> None:
        """Stop an mcm with its instance, and remove its objects. Raises WorkloadsError while the mcm has not ended."""
        await self._runtime.stop(component)
        await self._identities.remove(account_of(component))
        # Deleted last, because the component is the record of the other objects.
        await self._runtime.delete(component)

    async def vacate(self, control_plane: ControlPlane) -> None:
        """Stop all mcm in the namespace of a control plane. Raises WorkloadsError while an mcm has not ended."""
        for component in self.at(control_plane.name):
            await self.end(component)


class DedicatedMcmReconciler:
    """Reconciler of dedicated mcm. Reports problems in the registration's condition DedicatedReady."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        runtime: Runtime,
        mcms: DedicatedMcms,
        identities: McmIdentities,
        program: McmProgram | None,
        config: ClusterConfig | None,
    ) -> None:
        """`program` is None if the operator has no program to run as dedicated mcm.

        `config` is the operator's own, if workloads are not pods. The mcm reach the management cluster as the operator
        does, but with their own credentials. `config` is None if workloads are pods.
        """
        self._context = context
        self._runtime = runtime
        self._mcms = mcms
        self._identities = identities
        self._program = program
        self._config = (
            ClusterConfig(
                server=config.server,
                ca_data=config.ca_data,
                tls_server_name=config.tls_server_name,
                token_file=Path(_TOKEN_FILE),
                proxy=config.proxy,
            )
            if config is not None
            else None
        )
        self._uids = UIDTracker()

    async def reconcile(self, key: Key) -> Result | None:
        """Reconcile the mcm of a registration, or stop the mcm of a deleted registration."""
        obj = self._context.stores.registrations.get(key)
        uid = obj["metadata"]["uid"] if obj is not None else None
        with log_fields(object=f"ControlPlaneRegistration/{key[1]}"):
            if (former := self._uids.former(key, uid=uid)) is not None:
                # Also if a new registration has the same name already. Orphans stops the mcm of registrations that this
                # process has never seen.
                try:
                    if eldest_of(mcm_mark(former), stores=self._context.stores) is None:
                        await self._end(self._mcms.of(former))
                except WorkloadsError as error:
                    _log.info("not ended yet, again in %g s: %s", _RETRY_SECONDS, error)
                    return Result(jittered(_RETRY_SECONDS))
                await self._identities.revoke(former)
            self._uids.succeed(key, uid=uid)
            if obj is None:
                return None
            return await self._keep(PartialRegistration.of(obj))

    def wake(self, component: str) -> None:
        """Enqueue the objects that a change of an mcm concerns after the deletion of its registration.

        The reconcile of the registration's former key stops the mcm. The registrations of the control plane wait for
        the end of the mcm.
        """
        mark, stores, triggers = mark_of(component), self._context.stores, self._context.triggers
        if mark is None or eldest_of(mark, stores=stores) is not None:
            return
        for key in self._uids.of(lambda uid: mcm_mark(uid) == mark):
            triggers.mcms.add(key[1])
        for served in stores.control_planes.by("namespace", place(component).namespace):
            for obj in stores.registrations.by("control plane", served["metadata"]["name"]):
                triggers.registrations.add(obj["metadata"]["name"])

    async def _keep(self, registration: PartialRegistration) -> Result | None:
        uid = registration.metadata.uid or ""
        if eldest_of(mcm_mark(uid), stores=self._context.stores) != uid:
            return None  # this registration is refused; the eldest registration with the mark owns the components
        present = self._mcms.of(uid)
        if not present and not await self._is_concerned(registration):
            return None
        try:
            if is_paused(registration):
                # A paused mcm stays as it is. Only the token of an mcm that is no pod needs a renewal from here.
                return await self._run(registration, present[0]) if present and self._config is not None else None
            component = self._component(registration, present=present)
            ending = [name for name in present if name != component]
            if ending and not await self._has_ended(registration, ending):
                return Result(jittered(_RETRY_SECONDS))
            if component is None:
                await self._leave(registration)
            return await self._run(registration, component) if component is not None else None
        except Conflict:
            _log.info("changed meanwhile, again in %g s", _RETRY_SECONDS)
        except (WorkloadsError, BootstrapFailed) as error:
            await self._tell(registration, "False", Reason.MCM_FAILED, str(error))
        except (Forbidden, Invalid) as error:
            failure = management_refusal(error)
            await self._tell(registration, "False", failure.reason, failure.message)
        return Result(jittered(_RETRY_SECONDS))

    async def _has_ended(self, registration: PartialRegistration, ending: Sequence[str]) -> bool:
        """Stop mcm, and return whether all have ended. An mcm that needs time to stop is no error."""
        condition = find_condition(registration.conditions, DEDICATED_READY)
        if condition is None or condition.reason != Reason.MCM_ENDING:
            await self._tell(registration, "False", Reason.MCM_ENDING, _ENDING)
        try:
            await self._end(ending)
        except WorkloadsError as error:
            await self._tell(registration, "False", Reason.MCM_ENDING, f"{_ENDING}; {error}")
            return False
        return True

    async def _leave(self, registration: PartialRegistration) -> None:
        """Remove the remains of an mcm that has ended: `status.instance`, the RBAC rights, and the condition."""
        context, latest = self._context, self._latest(registration)
        if _has_instance(latest, mode=RegistrationMode.DEDICATED):
            await context.status.end_instance(context.stores.registrations, latest)
        await self._identities.revoke(registration.metadata.uid or "")
        await context.status.drop_apart(context.stores.registrations, self._latest(registration), type=DEDICATED_READY)

    async def _is_concerned(self, registration: PartialRegistration) -> bool:
        """Return whether the registration needs an mcm of its own, or whether an ended mcm has left anything behind."""
        return (
            registration.status.mode is RegistrationMode.DEDICATED
            or _has_instance(registration, mode=RegistrationMode.DEDICATED)
            or find_condition(registration.conditions, DEDICATED_READY) is not None
            or await self._identities.is_holder(registration.metadata.uid or "")
        )

    def _component(self, registration: PartialRegistration, *, present: Sequence[str]) -> str | None:
        """Return the name of the component that must run; None if no mcm must run, or without a namespace for it."""
        desired = registration.status.mode is RegistrationMode.DEDICATED and not registration.deleting
        if not desired or self._program is None:
            return None
        return self._home(registration) or next((name for name in present if self._stays(name)), None)

    def _home(self, registration: PartialRegistration) -> str | None:
        if not registration.status.ready:
            return None
        served = self._context.stores.control_planes.by("uid", registration.status.control_plane_uid or "")
        names = [obj["metadata"]["name"] for obj in served if "deletionTimestamp" not in obj["metadata"]]
        return mcm_name(names[0], uid=registration.metadata.uid or "") if names else None

    def _stays(self, component: str) -> bool:
        """Return whether the control plane of an mcm stays awake, so that its registration may soon be ready again."""
        control_planes = self._context.stores.control_planes.by("namespace", place(component).namespace)
        return any("deletionTimestamp" not in obj["metadata"] and not is_hibernated(obj) for obj in control_planes)

    async def _run(self, registration: PartialRegistration, component: str) -> Result | None:
        if self._program is None:
            return None  # the registration is paused, and an operator with a program had started its mcm
        if find_condition(registration.conditions, DEDICATED_READY) is None:
            await self._tell(registration, "False", Reason.MCM_STARTING, "its mcm is about to be started")
        # Reserve first: the component is then on record, so a removal finds the objects that follow.
        address = await self._runtime.reserve(component, ports=MCM_PORTS)
        account = account_of(component)
        await self._identities.ensure(registration, account=account)
        trial = self._trial(account.namespace)
        present = self._runtime.state(component)
        await self._runtime.apply(
            mcm_component(
                component,
                registration=registration.name,
                program=self._program,
                address=address,
                service_account=account.name,
                files=await self._files(account),
                scheduling=trial.scheduling,
                scheduling_held=trial.holds(present) and not present.unplaced,
            )
        )
        state = self._runtime.state(component)
        if state.phase is Phase.READY and _has_instance(registration, mode=RegistrationMode.SHARED):
            message = "its mcm runs, and waits until the one of many registrations says that its instance has ended"
            await self._tell(registration, "False", Reason.WAITING_FOR_SHARED, message)
        elif state.phase is Phase.READY:
            await self._tell(registration, "True", Reason.MCM_RUNNING, f"its mcm runs in namespace {account.namespace}")
        else:
            starts = state.phase in _BEFORE_READY and not state.unobtainable
            message = f"its mcm is {state.phase}" + (f": {state.message}" if state.message else "")
            await self._tell(registration, "False", Reason.MCM_STARTING if starts else Reason.MCM_FAILED, message)
        renewal = self._identities.renewed_in(account) if self._config is not None else _PERIOD_SECONDS
        keeps_scheduling = self._runtime.settled(component) and not self._runtime.placed(component, trial.scheduling)
        due = _RETRY_SECONDS if keeps_scheduling else min(_PERIOD_SECONDS, renewal)
        return Result(jittered(max(_RETRY_SECONDS, due)))

    def _trial(self, namespace: str) -> SchedulingTrial:
        """Return the scheduling of the control plane that has this namespace, for pods beside its API server."""
        stores = self._context.stores
        control_planes = [as_recorded(obj) for obj in stores.control_planes.by("namespace", namespace)]
        if not control_planes:
            return SchedulingTrial(None)
        api_server = apiserver_name(control_planes[0].name, slot=control_planes[0].home.slot)
        scheduling = scheduling_of(class_in_force(control_planes[0], classes=stores.classes).chosen)
        return try_scheduling(self._runtime, api_server, scheduling)

    async def _files(self, account: Account) -> dict[str, File]:
        """Return the kubeconfig and token for an mcm that is no pod. The mcm reads the token again after a renewal."""
        if self._config is None:
            return {}
        token = await self._identities.token(account)
        kubeconfig = json.dumps(self._config.to_kubeconfig()).encode()
        return {"kubeconfig": File(kubeconfig), _TOKEN_FILE: File(token.encode(), reloaded=True)}

    async def _end(self, components: Sequence[str]) -> None:
        for component in components:
            await self._mcms.end(component)

    async def _tell(
        self, registration: PartialRegistration, status: ConditionStatus, reason: Reason, message: str
    ) -> None:
        if status == "False":
            self._context.metrics.condition_failed("dedicatedmcm", reason=reason)
        await self._context.status.write_apart(
            self._context.stores.registrations,
            self._latest(registration),
            type=DEDICATED_READY,
            status=status,
            reason=reason,
            message=message,
        )

    def _latest(self, registration: PartialRegistration) -> PartialRegistration:
        """Return the registration with its newest status from the cache, so that no condition is written twice."""
        obj = self._context.stores.registrations.get(("", registration.name))
        if obj is None or obj["metadata"]["uid"] != registration.metadata.uid:
            return registration
        return PartialRegistration.of(obj)


def _has_instance(registration: PartialRegistration, *, mode: RegistrationMode) -> bool:
    instance = registration.status.instance
    return instance is not None and (instance.mode or RegistrationMode.SHARED) is mode
