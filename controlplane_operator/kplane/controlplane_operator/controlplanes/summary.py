"""Status of a control plane, made from the outcomes of a pass."""

from __future__ import annotations

from datetime import UTC, datetime

from kplane.api import ControlPlaneMode, ControlPlanePhase, ControlPlaneStatus, StorageStatus
from kplane.api.conditions import SYNCED
from kplane.api.names import management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.versions import not_held_to, with_up_to_date
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.passes import Pass
from kplane.controlplane_operator.controlplanes.rotator import refused_rotation
from kplane.controlplane_operator.credentials.key_records import settled_fingerprints
from kplane.controlplane_operator.hibernation.decision import is_migrating, start_of
from kplane.controlplane_operator.hibernation.outcome import Outcome, ended
from kplane.controlplane_operator.hibernation.requests import Requests
from kplane.controlplane_operator.hibernation.sleeper import Sleeper
from kplane.controlplane_operator.shared_etcd.quota import recorded, with_storage
from kplane.controlplane_operator.status.conditions import with_condition, with_lease_guards, with_supported
from kplane.controlplane_operator.tenant.admission import refused_deletion
from kplane.workloads import Runtime

__all__ = ["Summary"]


class Summary:
    """Makes the status from the outcomes of a pass."""

    def __init__(self, context: OperatorContext, *, sleeper: Sleeper, runtime: Runtime) -> None:
        self._context = context
        self._sleeper = sleeper
        self._runtime = runtime

    def status(self, one: Pass) -> ControlPlaneStatus:
        """Return the status for the outcomes of the phases. Published fields stay unless they are published anew."""
        control_plane, fields = one.control_plane, one.published or {}
        published = one.was_published or bool(fields)
        sleep = self._sleep(one, published=published)
        reason, message = sleep.ready or one.ready
        conditions = with_condition(
            sleep.conditions(control_plane.status.conditions, of=control_plane),
            of=control_plane,
            status="True" if reason is Reason.RECONCILED or sleep.ready is not None else "False",
            reason=reason,
            message=message,
        )
        if one.provision is not None and fields:
            conditions = with_up_to_date(
                conditions, of=control_plane, provision=one.provision, version=fields["version"]
            )
        if one.credentials is not None and one.credentials.lease_guards is not None:
            conditions = with_lease_guards(conditions, of=control_plane, guards=one.credentials.lease_guards)
        if one.failure is None:
            conditions = [condition for condition in conditions if condition.type != SYNCED]
        storage = _storage(one)
        conditions = with_storage(conditions, of=control_plane, storage=storage)
        return control_plane.status.model_copy(
            update={
                **fields,
                "namespace_uid": one.namespace_uid or control_plane.status.namespace_uid,
                "key_fingerprints": self._key_fingerprints(one),
                "storage": storage,
                "hibernation": sleep.sleep,
                "phase": _phase(one, reason, published=published),
                "observed_generation": control_plane.metadata.generation,
                "conditions": with_supported(conditions, of=control_plane, missing=self._unsupported(one)),
            }
        )

    def _sleep(self, one: Pass, *, published: bool) -> Outcome:
        """Return the outcome for the sleep; the present sleep state if the pass made no decision about it."""
        if one.decision is None:
            return Outcome(one.control_plane.status.hibernation)
        return ended(
            one.control_plane,
            one.decision,
            published=published,
            asleep=one.is_asleep,
            failure=one.failure,
            waiting=one.decision.waits or self._sleeper.waits_for(one.control_plane),
        )

    def _key_fingerprints(self, one: Pass) -> dict[str, str]:
        """Return the fingerprints of the keys, which the status keeps in case a user deletes the namespace."""
        status, name = one.control_plane.status, management_namespace(one.control_plane.name)
        namespace, uid = self._context.stores.namespaces.get(("", name)), one.namespace_uid or status.namespace_uid
        is_own = namespace is not None and namespace["metadata"]["uid"] == uid
        return settled_fingerprints(namespace) if namespace is not None and is_own else status.key_fingerprints

    def _unsupported(self, one: Pass) -> list[str]:
        """Return sentences about fields of spec and class that are accepted but have no effect."""
        control_plane_class = one.followed.chosen
        start = start_of(one.control_plane, chosen=control_plane_class, gateway=self._context.gateway)
        requests = Requests.of(one.control_plane, start=start, now=datetime.now(UTC))
        sentences = [
            *refused_rotation(one.control_plane),
            *requests.refused,
            *refused_deletion(one.control_plane, chosen=control_plane_class, asleep=one.is_asleep),
        ]
        dedicated = one.control_plane.spec.dedicated
        if dedicated is not None and (dedicated.provider_ref is not None or dedicated.parameters_ref is not None):
            sentences.append(
                "spec.dedicated.providerRef and parametersRef have no effect: kplane runs the control plane"
            )
        if dedicated is not None and one.control_plane.spec.endpoint_ref is not None:
            idle = [name for name in ("etcd", "volume") if getattr(dedicated, name) is not None]
            explanation = "has no effect: kplane does not run the API server at spec.endpointRef"
            sentences += [f"spec.dedicated.{name} {explanation}" for name in idle]
        return [*sentences, *not_held_to(one.control_plane, chosen=control_plane_class, runtime=self._runtime)]


def _phase(one: Pass, reason: Reason, *, published: bool) -> ControlPlanePhase:
    if one.failure is None and is_migrating(one.control_plane):
        return ControlPlanePhase.MIGRATING
    return reason.phase(published=published)


def _storage(one: Pass) -> StorageStatus | None:
    """Return the measured usage of the shared etcd and the quota of the class; None for mode Dedicated."""
    if one.control_plane.home.mode is not ControlPlaneMode.VIRTUAL:
        return None
    control_plane_class = one.followed.chosen
    usage = one.provisioner.usage(one.control_plane.metadata.uid or "") if one.provisioner is not None else None
    quota_bytes = control_plane_class.spec.storage_quota_bytes if control_plane_class is not None else None
    return recorded(one.control_plane.status.storage, usage=usage, quota_bytes=quota_bytes)
