"""Sums a pass up in the status of the control plane."""

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
    """Makes statuses of passes."""

    def __init__(self, context: OperatorContext, *, sleeper: Sleeper, runtime: Runtime) -> None:
        self._context = context
        self._sleeper = sleeper
        self._runtime = runtime

    def status(self, one: Pass) -> ControlPlaneStatus:
        """Make the status of what the phases found. What was published stays unless it is published anew."""
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
            conditions = [each for each in conditions if each.type != SYNCED]
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
        """Return what the status says of the sleep; nothing new where it was not decided about."""
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
        """Return a copy of the record of the keys, for the namespace that replaces a lost one."""
        known, name = one.control_plane.status, management_namespace(one.control_plane.name)
        namespace, uid = self._context.stores.namespaces.get(("", name)), one.namespace_uid or known.namespace_uid
        is_own = namespace is not None and namespace["metadata"]["uid"] == uid
        return settled_fingerprints(namespace) if namespace is not None and is_own else known.key_fingerprints

    def _unsupported(self, one: Pass) -> list[str]:
        """Say, in sentences, what of the spec and the class is accepted and has no effect."""
        chosen = one.followed.chosen
        start = start_of(one.control_plane, chosen=chosen, gateway=self._context.gateway)
        requests = Requests.of(one.control_plane, start=start, now=datetime.now(UTC))
        told = [
            *refused_rotation(one.control_plane),
            *requests.refused,
            *refused_deletion(one.control_plane, chosen=chosen, asleep=one.is_asleep),
        ]
        dedicated = one.control_plane.spec.dedicated
        if dedicated is not None and (dedicated.provider_ref is not None or dedicated.parameters_ref is not None):
            told.append("spec.dedicated.providerRef and parametersRef have no effect: kplane runs the control plane")
        if dedicated is not None and one.control_plane.spec.endpoint_ref is not None:
            idle = [name for name in ("etcd", "volume") if getattr(dedicated, name) is not None]
            why = "has no effect: kplane does not run the API server at spec.endpointRef"
            told += [f"spec.dedicated.{name} {why}" for name in idle]
        return [*told, *not_held_to(one.control_plane, chosen=chosen, runtime=self._runtime)]


def _phase(one: Pass, reason: Reason, *, published: bool) -> ControlPlanePhase:
    if one.failure is None and is_migrating(one.control_plane):
        return ControlPlanePhase.MIGRATING
    return reason.phase(published=published)


def _storage(one: Pass) -> StorageStatus | None:
    """Return what the control plane was found to keep in the shared etcd, with the quota of its class."""
    if one.control_plane.home.mode is not ControlPlaneMode.VIRTUAL:
        return None
    chosen = one.followed.chosen
    usage = one.provisioner.usage(one.control_plane.metadata.uid or "") if one.provisioner is not None else None
    quota_bytes = chosen.spec.storage_quota_bytes if chosen is not None else None
    return recorded(one.control_plane.status.storage, usage=usage, quota_bytes=quota_bytes)
