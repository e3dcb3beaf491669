"""Versions of Kubernetes that a control plane may have, given the version that it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kplane.api import (
    ComputeResources,
    Condition,
    ControlPlane,
    ControlPlaneClass,
    EndpointPolicy,
    KubernetesVersion,
    quantity,
)
from kplane.api.conditions import UP_TO_DATE
from kplane.api.reasons import Reason
from kplane.components.api_server import API_SERVER, API_SERVER_RESOURCES
from kplane.components.names import apiserver_name
from kplane.controlplane_operator.backends.base import Provision, VersionLag
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import asked_policy, wants_host_name
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.workloads import ComponentState, Phase, Resources, Runtime, RuntimeFailure

__all__ = [
    "OLDEST",
    "ApiServerPlan",
    "ApiServerPlanner",
    "not_held_to",
    "resources_of",
    "why_not",
    "with_up_to_date",
]

OLDEST: Final = KubernetesVersion(1, 34, 0)
"""Oldest supported version.

An older kube-apiserver does not read kplane's AuthenticationConfiguration (KEP-3331, v1).
"""


def why_not(wanted: KubernetesVersion, *, running: KubernetesVersion | None, patches_back: bool = False) -> str | None:
    """Return why `wanted` is refused, as a sentence; None if it is accepted. `running` is the reported version.

    An older API server may not know object versions that a newer one has stored. Each minor version may drop features
    that the previous version deprecated, so https://kubernetes.io/releases/version-skew-policy/ demands upgrades step
    by step. `patches_back` accepts an older patch release of the same minor version.
    """
    if wanted < OLDEST:
        return f"version {wanted} is older than {OLDEST}, which kplane needs; set spec.version to that or newer"
    if running is None or wanted == running:
        return None
    steps = wanted.minors_after(running)
    if steps > 1:
        return (
            f"version {wanted} skips a minor version: {running} runs, and after it comes"
            f" {running.major}.{running.minor + 1}; set spec.version to a release of that first"
        )
    if wanted < running and not (patches_back and steps == 0):
        return (
            f"version {wanted} is older than {running}, which runs, and may not be able to read what that has stored;"
            f" set spec.version to {running} or newer"
        )
    return None


@dataclass(frozen=True, slots=True)
class ApiServerPlan:
    """Settings that the runtime is asked for."""

    version: str | None
    """Version for the runtime; None for the runtime's own version."""
    resources: Resources
    asked: KubernetesVersion | None = None
    """Accepted version of spec or class; None if both leave the version to the operator, or the version was refused."""
    refused: VersionLag | None = None
    """Reason why the API server keeps its version; None if it does not."""
    chosen: ControlPlaneClass | None = None
    """Class that the API server follows in all other settings."""

    def lag(self, state: ComponentState) -> VersionLag | None:
        """Return how the API server with this state differs from the request; None if it does not."""
        if self.refused is not None or not state.rolling:
            return self.refused
        if state.failing:
            return VersionLag(
                Reason.CHANGE_FAILED,
                "the next kube-apiserver fails before it is ready, and the one before it serves on; correct the change"
                f" in the class or in spec: {state.message}",
            )
        way = f"; in its way: {state.message}" if state.message else ""
        return VersionLag(
            Reason.ROLLING_OUT, f"the next kube-apiserver is not ready yet, and the one before it serves on{way}"
        )


class ApiServerPlanner:
    """Makes the plans of API servers."""

    def __init__(self, context: OperatorContext, *, runtime: Runtime) -> None:
        self._context = context
        self._runtime = runtime

    async def plan(self, control_plane: ControlPlane) -> ApiServerPlan:
        """Return the plan of the control plane's API server.

        If a running API server must not or cannot change to the requested version, the plan keeps its version. Raises
        ConditionError before the first start: VersionNotAllowed or VersionNotAvailable.
        """
        chosen = class_in_force(control_plane, classes=self._context.stores.classes).chosen
        if control_plane.status.endpoint is None:
            await self._check_source(control_plane, chosen=chosen)
        return replace(await self._plan(control_plane, chosen=chosen), chosen=chosen)

    async def _check_source(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> None:
        """Raise ConditionError (VersionNotAllowed) if the control plane starts from data of a later minor version."""
        restore = control_plane.status.restore
        written = KubernetesVersion.parse(restore.kubernetes_version) if restore is not None else None
        if written is None:
            return
        target = KubernetesVersion.parse(_asked(control_plane, chosen=chosen)) or await self._own()
        if target is not None and target.minors_after(written) < 0:
            raise ConditionError(
                Reason.VERSION_NOT_ALLOWED,
                f"the data of spec.source are of version {written}, and kube-apiserver {target} may not be able to read"
                f" them; set spec.version to {written} or newer",
            )

    async def _plan(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> ApiServerPlan:
        resources = resources_of(control_plane, chosen=chosen)
        running = KubernetesVersion.parse(control_plane.status.version)
        desired = KubernetesVersion.parse(_asked(control_plane, chosen=chosen))
        if desired is None:
            return await self._default(control_plane, running=running, resources=resources)
        refused = await self._refused(desired, running=running)
        if refused is None:
            return ApiServerPlan(await self._version(desired), resources, asked=desired)
        if running is None and control_plane.status.endpoint is None:
            raise ConditionError(refused.reason, refused.message)
        present = self._runtime.state(apiserver_name(control_plane.name, slot=control_plane.home.slot))
        absent = present.phase is Phase.ABSENT
        held = await self._held(running if absent else KubernetesVersion.parse(present.version))
        return ApiServerPlan(held, resources, refused=refused)

    async def _refused(self, wanted: KubernetesVersion, *, running: KubernetesVersion | None) -> VersionLag | None:
        if not_allowed := why_not(wanted, running=running):
            return VersionLag(Reason.VERSION_NOT_ALLOWED, not_allowed)
        try:
            cause = await self._runtime.lacks(API_SERVER, version=str(wanted))
        except RuntimeFailure as error:
            cause = str(error)
        return VersionLag(Reason.VERSION_NOT_AVAILABLE, f"version {wanted} cannot be had: {cause}") if cause else None

    async def _default(
        self, control_plane: ControlPlane, *, running: KubernetesVersion | None, resources: Resources
    ) -> ApiServerPlan:
        """Plan the operator's own version, which changes with the operator, unless that version is refused."""
        present = KubernetesVersion.parse(
            self._runtime.state(apiserver_name(control_plane.name, slot=control_plane.home.slot)).version
        )
        # Images may have their own numbering. Tags count only if the present tag equals the reported version.
        own = await self._own() if present is not None and present == running else None
        not_allowed = why_not(own, running=running, patches_back=True) if own is not None else None
        if not_allowed is None:
            return ApiServerPlan(None, resources)
        refused = VersionLag(Reason.VERSION_NOT_ALLOWED, f"the operator's default is refused: {not_allowed}")
        return ApiServerPlan(await self._held(present), resources, refused=refused)

    async def _held(self, version: KubernetesVersion | None) -> str | None:
        """Return the version that keeps an API server as it is; None if the runtime lacks that version, or it is
        unknown.
        """
        try:
            if version is None or await self._runtime.lacks(API_SERVER, version=str(version)):
                return None
        except RuntimeFailure:
            return None
        return await self._version(version)

    async def _version(self, version: KubernetesVersion) -> str | None:
        """Return the version for the runtime; None if it is the runtime's own version anyway."""
        return None if version == await self._own() else str(version)

    async def _own(self) -> KubernetesVersion | None:
        try:
            return KubernetesVersion.parse(await self._runtime.version(API_SERVER))
        except RuntimeFailure:
            return None  # starting the program fails with the cause


def with_up_to_date(
    conditions: Iterable[Condition], *, of: ControlPlane, provision: Provision, version: str
) -> list[Condition]:
    """Return the conditions with UpToDate=False if the API server differs from the request, and without it otherwise.

    `version` is the version that the API server reports.
    """
    lag = provision.lag or _differs(provision.asked, version=version)
    if lag is None:
        return [condition for condition in conditions if condition.type != UP_TO_DATE]
    return with_condition(conditions, of=of, type=UP_TO_DATE, status="False", reason=lag.reason, message=lag.message)


def _differs(asked: KubernetesVersion | None, *, version: str) -> VersionLag | None:
    if asked is None or KubernetesVersion.parse(version) == asked:
        return None
    return VersionLag(
        Reason.VERSION_DIFFERS,
        f"the API server reports {version}, and {asked} is asked for: the image is not what its tag says, or the"
        " program was replaced and has not been started again",
    )


def resources_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Resources:
    """Return the resources of the API server. Defaults are adjusted so that no request exceeds its limit."""
    desired = _resources_asked(control_plane, chosen=chosen) or ComputeResources()
    requests, limits = desired.requests, desired.limits
    default = API_SERVER_RESOURCES
    cpu_limit, memory_limit = (limits.cpu, limits.memory) if limits is not None else (None, None)
    cpu, memory = (requests.cpu, requests.memory) if requests is not None else (None, None)
    cpu = cpu or (_lower(default.cpu_request, cpu_limit) if cpu_limit else default.cpu_request)
    memory = memory or (_lower(default.memory_request, memory_limit) if memory_limit else default.memory_request)
    return Resources(
        cpu_request=cpu,
        memory_request=memory,
        memory_limit=memory_limit or _higher(default.memory_limit, memory),
        cpu_limit=cpu_limit,
    )


def not_held_to(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, runtime: Runtime) -> list[str]:
    """Return a sentence for each setting of the API server that is accepted without effect."""
    if control_plane.spec.endpoint_ref is not None:
        return _not_for_others(chosen)
    return [
        *_not_for_gateway(control_plane, chosen=chosen),
        *_not_for_processes(control_plane, chosen=chosen, runtime=runtime),
    ]


def _not_for_gateway(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> list[str]:
    """Return a sentence for each setting without effect on the requested addresses."""
    sentences = []
    policy = asked_policy(control_plane, chosen=chosen)
    if control_plane.spec.endpoint_style is not None and policy is EndpointPolicy.OWN:
        sentences.append("spec.endpointStyle has no effect: the endpointPolicy in force is Own")
    if chosen is not None and chosen.spec.limits is not None and wants_host_name(control_plane, chosen=chosen):
        why = "with endpointStyle HostName, the gateway does not see requests"
        sentences.append(f"limits of ControlPlaneClass {chosen.name} are not acted on: {why}")
    return sentences


def _not_for_processes(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, runtime: Runtime) -> list[str]:
    """Return a sentence about settings that only apply to pods; empty if API servers are pods."""
    if runtime.runs_pods:
        return []
    settings = ["resources"] if _resources_asked(control_plane, chosen=chosen) is not None else []
    settings += ["dedicated.volume"] if control_plane.home.volume is not None else []
    settings += [name for name in ("pods", "service") if chosen is not None and getattr(chosen.spec, name) is not None]
    if not settings:
        return []
    return [f"{' and '.join(settings)} are not acted on: this operator runs API servers as processes, not as pods"]


def _not_for_others(chosen: ControlPlaneClass | None) -> list[str]:
    """Return a sentence about settings of a class that do not apply to an API server outside kplane."""
    if chosen is None:
        return []
    spec = chosen.spec
    fields = {
        "version": spec.version,
        "resources": spec.resources,
        "apiServer": spec.api_server,
        "service": spec.service,
        "allowedDestinations": spec.allowed_destinations,
        "etcd": spec.etcd,
        "endpointPolicy": spec.endpoint_policy,
        "endpointStyle": spec.endpoint_style,
        "virtual": spec.virtual,
    }
    names = [name for name, value in fields.items() if value]
    if not names:
        return []
    what = f"{' and '.join(names)} of ControlPlaneClass {chosen.name}"
    return [f"{what} are not acted on: kplane does not run the API server at spec.endpointRef"]


def _asked(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> str | None:
    return control_plane.spec.version or (chosen.spec.version if chosen is not None else None)


def _resources_asked(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> ComputeResources | None:
    return control_plane.spec.resources or (chosen.spec.resources if chosen is not None else None)


def _lower(one: str, other: str) -> str:
    return min(one, other, key=quantity)


def _higher(one: str, other: str) -> str:
    return max(one, other, key=quantity)
