"""Components as pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from kplane.provider import Client, Conflict, NotFound, Resource
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
)
from kplane.workloads.component import Component, Scheduling
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.pods.calls import failing, get_own, unless_leaving
from kplane.workloads.pods.claims import Claims
from kplane.workloads.pods.objects import (
    PULL_SECRETS,
    Object,
    check_supported,
    claim_name,
    disruption_budget,
    files_secret,
    files_secret_name,
    hold_scheduling,
    is_stateful,
    network_policy,
    pull_secret,
    selector_of,
    workload,
)
from kplane.workloads.pods.observation import Observation, is_ended, living
from kplane.workloads.pods.service import serves, service, with_load_balancer_of
from kplane.workloads.pods.settings import Expose, Image, Placement, PodSettings
from kplane.workloads.runtime import Address, ComponentState, Exposure, ExternalAddress, NamedLocks, Phase, Subscribers

__all__ = ["PodRuntime"]

logger = logging.getLogger(__name__)

_LISTEN: Final = "0.0.0.0"  # noqa: S104 - in a pod of its own, behind a NetworkPolicy
_VERIFIED_SECONDS: Final = 600.0
"""Time for which objects that are not watched are assumed to be unchanged."""
_END_SECONDS: Final = 2.0
"""Time for which a call waits for the end of pods. Callers retry anyway, and other calls need their worker."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """Record of the objects written for a component, and of the time until which they are assumed to be unchanged."""

    digest: str
    uid: str
    generation: int
    until: float
    scheduling: Scheduling | None
    held: bool
    """Whether the workload keeps a former scheduling."""


class PodRuntime:
    """A `Runtime` of Deployments and StatefulSets; an async context manager.

    A component is a StatefulSet if it keeps data or is single, else a Deployment. `place` returns the namespace of a
    component and the name of its objects. The namespace must exist, and belongs to the owner of the runtime. Every
    object of a component has the label `controlplane.kplane.dev/component`, and only objects with the label are
    deleted, besides copies of pull Secrets.

    A changed description replaces pods one by one. A Deployment's next pod is ready before the former pod ends. A
    StatefulSet's former pod has ended before the next pod starts. Components continue when the runtime ends, and a
    later runtime finds them by their labels.
    """

    def __init__(
        self,
        client: Client,
        *,
        place: Callable[[str], Placement],
        settings: PodSettings,
        end_seconds: float = _END_SECONDS,
    ) -> None:
        """Create a runtime, which acts after its context is entered.

        `end_seconds` is the time for which `stop` and `delete` wait for the end of pods, before they raise
        RuntimeFailure.
        """
        self._client = client
        self._place = place
        self._settings = settings
        self._end_seconds = end_seconds
        self._subscribers = Subscribers()
        self._observation = Observation(client, place=place, on_change=self._subscribers.notify)
        self._applied: dict[str, _Applied] = {}
        self._claims = Claims(client)
        self._locks = NamedLocks()
        # Locks by namespace: a copied Secret must not be removed before the workload that needs it is written.
        self._pulling = NamedLocks()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._observation.run(), name="follow components")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        following, self._following = self._following, None
        if following is not None:
            await end_tasks((following,))

    @property
    def runs_pods(self) -> bool:
        """See `Runtime.runs_pods`."""
        return True

    async def version(self, program: str) -> str | None:
        """See `Runtime.version`. The image's tag names the version; None if the tag names no release."""
        return self._image(program).version

    async def lacks(self, program: str, *, version: str) -> str | None:
        """See `Runtime.lacks`. A missing image is only detected when the kubelet pulls it."""
        try:
            self._image(program).at(version)
        except RuntimeFailure as error:
            return str(error)
        return None

    async def synced(self) -> None:
        """See `Runtime.synced`."""
        await self._observation.synced()

    async def reserve(self, name: str, *, ports: Sequence[str], exposed: Exposure | None = None) -> Address:
        """See `Runtime.reserve`. The address is a Service, which for an exposed component has the type of the settings.

        Raises RuntimeFailure until a load balancer has assigned an address.
        """
        placement = self._place(name)
        numbers = {port: self._number(name, port) for port in ports}
        desired = service(name, placement=placement, ports=numbers, settings=self._settings, exposed=exposed)
        existing = self._observation.service(name)
        if existing is not None:
            desired = with_load_balancer_of(existing, desired)
        if existing is None or not serves(existing, desired):
            with failing(f"Component {name}: its Service in namespace {placement.namespace}"):
                existing = await self._client.apply(SERVICES, desired, force=True)
        return Address(
            host=f"{placement.name}.{placement.namespace}.svc",
            ports=numbers,
            bind=_LISTEN,
            external=self._external(name, existing) if exposed is not None else None,
        )

    async def apply(self, component: Component) -> None:
        """See `Runtime.apply`.

        Raises RuntimeFailure if a pod does not support the description, or the cluster refuses it.
        """
        check_supported(component)
        placement = self._place(component.name)
        try:
            image = self._image(component.program)
            image = image if component.version is None else image.at(component.version)
        except RuntimeFailure as error:
            raise RuntimeFailure(f"Component {component.name}: {error}.") from error
        async with self._locks.holding(component.name):
            if component.data:
                await self._claims.protect(component.name, placement=placement)
            resource = STATEFUL_SETS if is_stateful(component) else DEPLOYMENTS
            live = self._observation.workload(component.name, resource=resource)
            described = workload(component, placement=placement, image=image, settings=self._settings)
            if live is not None and component.data:
                # Kubernetes refuses changes of the claim templates. Other settings count only for new components.
                described["spec"]["volumeClaimTemplates"] = _claims(live)
            held = component.scheduling_held and await self._hold_scheduling(component.name, resource, described, live)
            before: list[tuple[Resource, Object]] = [
                (SECRETS, files_secret(component, placement=placement)),
                (NETWORK_POLICIES, network_policy(component, placement=placement, settings=self._settings)),
            ]
            if (budget := disruption_budget(component, placement=placement)) is not None:
                before.append((POD_DISRUPTION_BUDGETS, budget))
            digest = _digest([obj for _, obj in before] + [described])
            if self._is_applied(component.name, digest=digest, live=live):
                # A held scheduling can make the objects equal although the described scheduling differs.
                applied = self._applied[component.name]
                self._applied[component.name] = replace(applied, scheduling=component.scheduling, held=held)
                return
            with failing(f"Component {component.name}: its objects in namespace {placement.namespace}"):
                if live is None:
                    await self._require_ended(component.name, resource, placement)
                async with self._pulling.holding(placement.namespace):
                    await self._copy_pull_secrets(placement.namespace)
                    for kind, obj in before:
                        await self._client.apply(kind, obj, force=True)
                    metadata = await self._apply_workload(component.name, resource, described, known=live)
                    self._applied[component.name] = _Applied(
                        digest,
                        metadata["uid"],
                        metadata["generation"],
                        time.monotonic() + _VERIFIED_SECONDS,
                        component.scheduling,
                        held,
                    )

    def state(self, name: str) -> ComponentState:
        """See `Runtime.state`. The state has no pid, because a component has several pods on several machines."""
        return self._observation.state(name)

    def settled(self, name: str) -> bool:
        """See `Runtime.settled`. False before the first `apply`: the description of an earlier run is unknown."""
        applied = self._applied.get(name)
        return applied is not None and self._observation.settled(name, generation=applied.generation)

    def placed(self, name: str, scheduling: Scheduling | None) -> bool:
        """See `Runtime.placed`."""
        applied = self._applied.get(name)
        asked = applied is not None and not applied.held and applied.scheduling == scheduling
        return asked and self.settled(name)

    def names(self, *, prefix: str = "") -> Sequence[str]:
        """See `Runtime.names`."""
        return self._observation.names(prefix=prefix)

    async def stop(self, name: str) -> None:
        """See `Runtime.stop`.

        The workload remains, with no replicas. Raises RuntimeFailure if pods have not ended yet.
        """
        placement = self._place(name)
        async with self._locks.holding(name):
            self._applied.pop(name, None)
            with failing(f"Component {name}: its end in namespace {placement.namespace}"):
                workloads = [
                    resource
                    for resource in (DEPLOYMENTS, STATEFUL_SETS)
                    if await self._scale_to_nothing(name, resource, placement)
                ]
                await self._ended(name, placement, workloads=workloads)
                async with unless_leaving(self._client, placement.namespace):
                    await self._remove_pull_secrets(name, placement.namespace)

    async def delete(self, name: str) -> None:
        """See `Runtime.delete`. Raises RuntimeFailure if the pods have not ended yet."""
        placement = self._place(name)
        async with self._locks.holding(name):
            self._applied.pop(name, None)
            with failing(f"Component {name}: its removal from namespace {placement.namespace}"):
                workloads = [
                    resource
                    for resource in (DEPLOYMENTS, STATEFUL_SETS)
                    # With foreground propagation, the workload is gone only after its pods.
                    if await self._remove(name, resource, placement, propagation="Foreground")
                ]
                await self._ended(name, placement, workloads=workloads)
                await self._claims.unprotect(name, placement=placement)
                await self._remove(name, PERSISTENT_VOLUME_CLAIMS, placement, object_name=claim_name(placement))
                async with unless_leaving(self._client, placement.namespace):
                    await self._remove(name, SECRETS, placement, object_name=files_secret_name(placement))
                    await self._remove_pull_secrets(name, placement.namespace)
                for resource in (NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, SERVICES):
                    await self._remove(name, resource, placement)

    async def volume(self, name: str) -> str | None:
        """See `Runtime.volume`. Raises RuntimeFailure if the cluster cannot be read."""
        return await self._claims.describe(name, placement=self._place(name))

    async def unprotect(self, name: str) -> None:
        """See `Runtime.unprotect`. Raises RuntimeFailure if the cluster refuses it."""
        async with self._locks.holding(name):
            await self._claims.unprotect(name, placement=self._place(name))

    async def has_data(self, name: str) -> bool:
        """See `Runtime.has_data`. Raises RuntimeFailure if the cluster cannot be read."""
        return await self._claims.exists(name, placement=self._place(name))

    async def data_mark(self, name: str) -> str | None:
        """See `Runtime.data_mark`. The mark is an annotation of the PersistentVolumeClaim."""
        return await self._claims.mark(name, placement=self._place(name))

    async def mark_data(self, name: str, mark: str) -> None:
        """See `Runtime.mark_data`."""
        async with self._locks.holding(name):
            await self._claims.set_mark(name, mark, placement=self._place(name))

    def subscribe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `Runtime.subscribe`. The callback is called in the loop, and its exceptions are logged."""
        return self._subscribers.add(callback)

    def _image(self, program: str) -> Image:
        image = self._settings.images.get(program)
        if image is None:
            programs = ", ".join(sorted(self._settings.images))
            raise RuntimeFailure(f"there is no image for program {program!r}, only for {programs}")
        return image

    def _number(self, name: str, port: str) -> int:
        try:
            return self._settings.ports[port]
        except KeyError:
            raise RuntimeFailure(f"Component {name}: there is no number for its port {port!r}.") from None

    def _external(self, name: str, known: Object) -> ExternalAddress | None:
        match self._settings.expose:
            case Expose.CLUSTER_IP:
                return None
            case Expose.NODE_PORT:
                ports = {port["name"]: port["nodePort"] for port in known["spec"]["ports"] if "nodePort" in port}
                return ExternalAddress(self._settings.external_host or "", ports)
            case Expose.LOAD_BALANCER:
                given = known.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}]
                host = given[0].get("hostname") or given[0].get("ip")
                if host is None:
                    namespace, service_name = known["metadata"]["namespace"], known["metadata"]["name"]
                    raise RuntimeFailure(
                        f"Component {name}: Service {namespace}/{service_name} has no address from a load balancer yet."
                    )
                return ExternalAddress(_canonical(host), _ports(known))

    async def _hold_scheduling(self, name: str, resource: Resource, described: Object, observed: Object | None) -> bool:
        """Replace the described scheduling with the workload's present scheduling; returns whether they differed."""
        applied = self._applied.get(name)
        live = observed
        if applied is not None and (live is None or live["metadata"]["generation"] < applied.generation):
            # The watch lags behind the last write, and would restore a former scheduling.
            placement = self._place(name)
            with failing(f"Component {name}: its {resource.kind} in namespace {placement.namespace}"):
                live = await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name)
        return live is not None and hold_scheduling(described, live=live)

    def _is_applied(self, name: str, *, digest: str, live: Object | None) -> bool:
        applied = self._applied.get(name)
        if applied is None or live is None or applied.digest != digest or time.monotonic() >= applied.until:
            return False
        metadata = live["metadata"]
        # The observed generation may lag behind the written generation. It is higher only after a write by others.
        return bool(metadata["uid"] == applied.uid and metadata["generation"] <= applied.generation)

    async def _apply_workload(
        self, name: str, resource: Resource, described: Object, *, known: Object | None
    ) -> Object:
        """Apply the workload, and return its metadata.

        A new workload is written only once no pod of a former workload is left.
        """
        placement = self._place(name)
        applied = None
        if known is not None:
            # The uid limits the write to the observed workload, which may have been deleted meanwhile.
            metadata = {**described["metadata"], "uid": known["metadata"]["uid"]}
            try:
                applied = await self._client.apply(resource, {**described, "metadata": metadata}, force=True)
            except Conflict:
                await self._require_ended(name, resource, placement)
        if applied is None:
            applied = await self._client.apply(resource, described, force=True)
        written: Object = applied["metadata"]
        if "deletionTimestamp" in written:
            raise RuntimeFailure(
                f"Component {name}: its former {resource.kind} in namespace {placement.namespace} is not gone yet."
            )
        return written

    async def _require_ended(self, name: str, resource: Resource, placement: Placement) -> None:
        """Raise RuntimeFailure if a new workload would get pods beside pods of a former workload."""
        # The new workload adopts pods without a controller.
        left = [pod for pod in await self._living(name, placement) if _has_controller(pod)]
        if not left:
            return
        workload = await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name)
        if workload is None or "deletionTimestamp" in workload["metadata"]:
            raise RuntimeFailure(
                f"Component {name}: pods of its former workload have not ended in namespace {placement.namespace} yet:"
                f" {_names(left)}; if nothing deletes them, delete their controller."
            )

    async def _copy_pull_secrets(self, namespace: str) -> None:
        source_namespace = self._settings.pull_secrets_namespace
        for name in self._settings.pull_secrets:
            try:
                source = await self._client.get(SECRETS, name, namespace=source_namespace)
            except NotFound:
                # The kubelet continues without the Secret, and the pods report images that it then cannot pull.
                logger.warning("Secret %s/%s for pulling images does not exist", source_namespace, name)
                continue
            await self._client.apply(SECRETS, pull_secret(source, namespace=namespace), force=True)

    async def _remove_pull_secrets(self, name: str, namespace: str) -> None:
        """Remove the copies of pull Secrets from a namespace.

        The copies stay if another component of the namespace runs, because its next pod may need them.
        """
        async with self._pulling.holding(namespace):
            # Written components may not have been observed yet.
            components = {
                *self._applied,
                *(other for other in self.names() if self.state(other).phase is not Phase.ABSENT),
            }
            if any(self._place(other).namespace == namespace for other in components - {name}):
                return
            for copy in (await self._client.list(SECRETS, namespace=namespace, label_selector=PULL_SECRETS)).items:
                with contextlib.suppress(NotFound):
                    await self._client.delete(SECRETS, copy["metadata"]["name"], namespace=namespace)

    async def _scale_to_nothing(self, name: str, resource: Resource, placement: Placement) -> bool:
        """Scale a workload to 0 replicas. Returns whether the workload exists."""
        if await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name) is None:
            return False
        patch = {"spec": {"replicas": 0}}
        await self._client.patch(resource, placement.name, patch, namespace=placement.namespace)
        return True

    async def _ended(self, name: str, placement: Placement, *, workloads: Sequence[Resource]) -> None:
        """Wait until no pod of the component is left, and these workloads make no more pods.

        Observed changes trigger the checks. The checks read from the API server, because a watch may lag.
        """
        changed = asyncio.Event()
        unsubscribe = self.subscribe(lambda other: changed.set() if other == name else None)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._end_seconds):
                    while not self._observation.ended(name) or await self._left(name, placement, workloads) is not None:
                        await changed.wait()
                        changed.clear()
                    return
            left = await self._left(name, placement, workloads)
            if left is not None:
                location = f"in namespace {placement.namespace}"
                raise RuntimeFailure(f"Component {name}: it has not ended {location} yet; pods: {left or 'none'}.")
        finally:
            unsubscribe()

    async def _left(self, name: str, placement: Placement, workloads: Sequence[Resource]) -> str | None:
        """Return the names of pods that are left; empty if pods may still come; None if the component has ended."""
        objects = [
            await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name)
            for resource in workloads
        ]
        # Read the pods after the workloads: a workload that has ended makes no more pods.
        pods = await self._living(name, placement)
        ended = all(workload is None or is_ended(workload) for workload in objects)
        return None if ended and not pods else _names(pods)

    async def _living(self, name: str, placement: Placement) -> list[Object]:
        """Read from the API server the pods of the component that may still run."""
        pods = await self._client.list(PODS, namespace=placement.namespace, label_selector=selector_of(name))
        return living(pods.items)

    async def _remove(
        self,
        name: str,
        resource: Resource,
        placement: Placement,
        *,
        object_name: str | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Delete an object of the component. An object of the same name that others made stays.

        Returns whether the object existed.
        """
        object_name = object_name or placement.name
        existing = await get_own(self._client, resource, object_name, namespace=placement.namespace, of=name)
        if existing is not None and "deletionTimestamp" not in existing["metadata"]:
            with contextlib.suppress(NotFound):
                await self._client.delete(
                    resource,
                    object_name,
                    namespace=placement.namespace,
                    uid=existing["metadata"]["uid"],
                    propagation=propagation,
                )
        return existing is not None


def _has_controller(pod: Object) -> bool:
    return any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences", ()))


def _names(pods: Sequence[Object]) -> str:
    return ", ".join(pod["metadata"]["name"] for pod in pods)


def _canonical(host: str) -> str:
    """Return an address in the form that certificates use, in which clients compare it."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _ports(known: Object) -> dict[str, int]:
    return {port["name"]: port["port"] for port in known["spec"].get("ports", ())}


def _claims(live: Object) -> list[Object]:
    """Return the claim templates of a StatefulSet without the fields that the API server adds."""
    return [
        {"metadata": {k: v for k, v in claim["metadata"].items() if k in {"name", "labels"}}, "spec": claim["spec"]}
        for claim in live["spec"].get("volumeClaimTemplates", ())
    ]


def _digest(objects: list[Object]) -> str:
    return hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
