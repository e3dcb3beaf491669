"""Reconciler of the add-ons of a ControlPlane: installs the add-ons that the class names, and removes former add-ons.

The condition AddonsReady reports add-ons, so a broken add-on does not make the control plane fail. The reconciler uses
the published credentials of the controllers, so it installs add-ons only after their publication.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from kplane.api import DEFAULT_SERVICE_CIDR, ControlPlane, EndpointType, find_condition, is_true
from kplane.api.conditions import ADDONS_READY, MANAGED
from kplane.api.names import controllers_secret_name, management_namespace
from kplane.api.reasons import Reason
from kplane.components.api_server import dns_address
from kplane.controlplane_operator.addons.builtin import TenantFacts
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.addons.kubeadm_join import ClusterFacts
from kplane.controlplane_operator.addons.sync import AddonSync
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.tenant.admission import tenant_errors
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.watch.backoff import KeyedBackoff, jittered
from kplane.controlplane_operator.watch.cache import Key
from kplane.controlplane_operator.watch.predicates import has_addons
from kplane.pki.kubeconfig import config_of
from kplane.provider import ClusterConfig, ProviderError, Result
from kplane.provider.logs import log_fields

__all__ = ["ControlPlaneAddonsReconciler"]

_INSTALLING: Final = "installing add-ons"
_SETTLED_SECONDS: Final = 300.0
"""Time for which add-ons that were installed without a failure are not checked again."""
_MAX_BACKOFF_SECONDS: Final = 120.0


@dataclass(slots=True)
class _Memory:
    """State of a control plane's add-ons between reconciles. A restart loses it without harm."""

    uid: str | None
    fingerprint: str = ""
    until: float = 0.0
    failed: list[str] = field(default_factory=list)
    """Add-ons that failed in the last pass, the least recently tried first."""


class ControlPlaneAddonsReconciler:
    """Reconciler that keeps add-ons installed."""

    def __init__(self, context: OperatorContext, *, bundles: Bundles) -> None:
        self._context = context
        self._bundles = bundles
        self._memory: dict[Key, _Memory] = {}
        self._backoff: KeyedBackoff[Key] = KeyedBackoff(first_seconds=1.0, limit_seconds=_MAX_BACKOFF_SECONDS)

    async def reconcile(self, key: Key) -> Result | None:
        """Install and remove the add-ons of a control plane, and report failures in its condition AddonsReady."""
        obj = self._context.stores.control_planes.get(key)
        if obj is None:
            self._memory.pop(key, None)
            self._backoff.forget(key)
            return None
        if not has_addons(obj, classes=self._context.stores.classes):
            return None  # a cheap check for most control planes, which have no add-ons
        with log_fields(object=f"ControlPlane/{key[1]}"):
            try:
                control_plane = ControlPlane.model_validate(obj)
            except ValidationError:
                return None  # the reconciler of control planes reports the error; add-ons stay
            if is_paused(control_plane):
                return None
            desired = self._wanted(control_plane)
            status = control_plane.status
            # A sleeping control plane gets its add-ons when it wakes.
            if control_plane.deleting or status.endpoint is None or status.hibernation is not None or desired is None:
                return None
            if not desired and find_condition(control_plane.status.conditions, ADDONS_READY) is None:
                return None
            config = self._credentials(control_plane)
            # Missing credentials, or credentials for another address, are about to be published. Their publication
            # enqueues the control plane again.
            return await self._keep(key, control_plane, wanted=desired, config=config) if config is not None else None

    def _wanted(self, control_plane: ControlPlane) -> list[str] | None:
        """Return the add-ons that must be installed; None if they are unknown, so that none is removed."""
        if control_plane.spec.class_ref is None:
            return []
        followed = class_in_force(control_plane, classes=self._context.stores.classes)
        return list(dict.fromkeys(followed.chosen.spec.addons)) if followed.chosen is not None else None

    def _credentials(self, control_plane: ControlPlane) -> ClusterConfig | None:
        key = management_namespace(control_plane.name), controllers_secret_name(control_plane.name)
        config = config_of(self._context.stores.secrets.get(key))
        return config if config is not None and config.server == control_plane.status.endpoint else None

    async def _keep(
        self, key: Key, control_plane: ControlPlane, *, wanted: list[str], config: ClusterConfig
    ) -> Result | None:
        memory = self._memory.get(key)
        if memory is None or memory.uid != control_plane.metadata.uid:
            memory = self._memory[key] = _Memory(control_plane.metadata.uid)
        facts = _facts(control_plane, config=config, gateway=self._context.gateway)
        fingerprint = self._fingerprint(wanted, config=config, facts=facts)
        if memory.fingerprint == fingerprint and time.monotonic() < memory.until:
            return Result(memory.until - time.monotonic())
        if find_condition(control_plane.status.conditions, ADDONS_READY) is None:
            # Set the condition before any object is created: the condition marks that objects may have to be removed.
            await self._tell(
                control_plane, ConditionError(Reason.INSTALLING, f"installing add-ons {', '.join(wanted)}")
            )
        memory.fingerprint = ""
        try:
            async with tenant_client(config) as client:
                sync = AddonSync(client, bundles=self._bundles, facts=facts)
                async with tenant_errors(client, _INSTALLING):
                    failures = await sync.all(wanted, last=memory.failed)
        except ProviderError as error:
            await self._tell(control_plane, _of_addons(tenant_error(_INSTALLING, error)))
            return Result(self._backoff.next(key, reason="unreachable"))
        except ConditionError as failure:
            await self._tell(control_plane, _of_addons(failure))
            return Result(self._backoff.next(key, reason="unreachable"))
        memory.failed = list(failures)
        await self._report(control_plane, wanted=wanted, failures=failures)
        if any(not failure.waits_for_event for failure in failures.values()):
            return Result(self._backoff.next(key))
        self._backoff.forget(key)
        seconds = jittered(_SETTLED_SECONDS)
        if sync.until is not None:
            seconds = max(1.0, min(seconds, (sync.until - datetime.now(UTC)).total_seconds()))
        memory.fingerprint, memory.until = fingerprint, time.monotonic() + seconds
        return Result(seconds)

    def _fingerprint(self, wanted: list[str], *, config: ClusterConfig, facts: TenantFacts) -> str:
        parts = [config.server, repr(facts), *(f"{addon}={self._bundles.version(addon)}" for addon in wanted)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    async def _report(
        self, control_plane: ControlPlane, *, wanted: list[str], failures: dict[str, ConditionError]
    ) -> None:
        if failures:
            message = "; ".join(f"add-on {addon}: {failure.message}" for addon, failure in sorted(failures.items()))
            await self._tell(control_plane, ConditionError(failures[min(failures)].reason, message))
        elif wanted:
            await self._tell(control_plane, None, message=f"installed: {', '.join(wanted)}")
        else:
            await self._context.status.drop_apart(self._context.stores.control_planes, control_plane, type=ADDONS_READY)

    async def _tell(self, control_plane: ControlPlane, failure: ConditionError | None, *, message: str = "") -> None:
        if failure is not None:
            self._context.metrics.condition_failed("controlplaneaddons", reason=failure.reason)
        await self._context.status.write_apart(
            self._context.stores.control_planes,
            control_plane,
            type=ADDONS_READY,
            status="True" if failure is None else "False",
            reason=Reason.INSTALLED if failure is None else failure.reason,
            message=message if failure is None else failure.message,
        )


def _of_addons(failure: ConditionError) -> ConditionError:
    """Return a failure of the control plane with a reason for the condition AddonsReady."""
    if failure.reason in {Reason.BOOTSTRAP_FAILED, Reason.FAILED}:
        return ConditionError(Reason.ADDON_FAILED, failure.message)
    return failure


def _facts(control_plane: ControlPlane, *, config: ClusterConfig, gateway: Gateway | None) -> TenantFacts:
    urls = {endpoint.type: endpoint.url for endpoint in control_plane.status.endpoints}
    managed = is_true(control_plane.status.conditions, MANAGED)
    external = urls.get(EndpointType.EXTERNAL, config.server)
    join = urls.get(EndpointType.JOIN, external)
    ca = config.ca_data
    if ca is not None and gateway is not None and (gateway.serves(external) or gateway.serves(join)):
        ca += gateway.ca
    service_cidr = control_plane.status.service_cidr or DEFAULT_SERVICE_CIDR
    return TenantFacts(
        external_url=external,
        cluster=ClusterFacts(
            name=control_plane.name,
            join_url=join,
            ca=ca,
            version=control_plane.status.version or "",
            service_range=service_cidr if managed else None,
            dns_address=dns_address(service_cidr) if managed else None,
        ),
    )
