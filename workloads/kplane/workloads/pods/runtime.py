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
"""So long objects that are not watched are taken to be as they were written."""
_END_SECONDS: Final = 2.0
"""So long the end of pods is waited for: whoever asked is called back anyway, and others want its worker."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """What was written for a component, and until when it is taken to be still so."""

    digest: str
    uid: str
    generation: int
    until: float
    scheduling: Scheduling | None
    held: bool
    """The workload keeps another scheduling."""


class PodRuntime:
    """A `Runtime` of Deployments, and of StatefulSets where data are kept or one runs at a time; a context manager.

    `place` tells the namespace of a component and the name of its objects; the namespace must exist, and belongs to
    whoever uses the runtime. Everything of a component carries the label `controlplane.kplane.dev/component`, and
    nothing without it is deleted. A changed description replaces pods one by one: of a Deployment the next one is ready
    before the last one goes, of a StatefulSet the last one has ended before the next one starts. Components go on when
    the runtime ends, and a later one finds them by their labels.
    """

    def __init__(
        self,
        client: Client,
        *,
        place: Callable[[str], Placement],
        settings: PodSettings,
        end_seconds: float = _END_SECONDS,
    ) -> None:
        """`end_seconds` is how long `stop` and `delete` wait for the end of pods before they say that it lasts."""
        self._client = client
        self._place = place
        self._settings = settings
        self._end_seconds = end_seconds
        self._subscribers = Subscribers()
        self._observation = Observation(client, place=place, on_change=self._subscribers.notify)
        self._applied: dict[str, _Applied] = {}
        self._claims = Claims(client)
        self._locks = NamedLocks()
        # Of namespaces: no copy of a Secret is removed between its being made and the workload that needs it.
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
        """See `Runtime.version`. It is what the image's tag says, and not known where that names no release."""
        return self._image(program).version

    async def lacks(self, program: str, *, version: str) -> str | None:
        """See `Runtime.lacks`. Whether there is an image of that tag shows when it is pulled."""
        try:
            self._image(program).at(version)
        except RuntimeFailure as error:
            return str(error)
        return None

    async def synced(self) -> None:
        """See `Runtime.synced`."""
        await self._observation.synced()

    async def reserve(self, name: str, *, ports: Sequence[str], exposed: Exposure | None = None) -> Address:
        """See `Runtime.reserve`. The address is a Service; that of an exposed component has the type of the settings.

        Raises RuntimeFailure as long as a load balancer has given it no address.
        """
        placement = self._place(name)
        numbers = {port: self._number(name, port) for port in ports}
        wanted = service(name, placement=placement, ports=numbers, settings=self._settings, exposed=exposed)
        known = self._observation.service(name)
        if known is not None:
            wanted = with_load_balancer_of(known, wanted)
        if known is None or not serves(known, wanted):
            with failing(f"Component {name}: its Service in namespace {placement.namespace}"):
                known = await self._client.apply(SERVICES, wanted, force=True)
        return Address(
            host=f"{placement.name}.{placement.namespace}.svc",
            ports=numbers,
            bind=_LISTEN,
            external=self._external(name, known) if exposed is not None else None,
        )

    async def apply(self, component: Component) -> None:
        """See `Runtime.apply`. Raises RuntimeFailure if a description cannot be a pod, or the cluster refuses it."""
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
                # Kubernetes lets nobody change them; other settings count for new components.
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
                # The same objects may come of another scheduling that is held.
                known = self._applied[component.name]
                self._applied[component.name] = replace(known, scheduling=component.scheduling, held=held)
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
        """See `Runtime.state`. There are no pids: several pods, on several machines."""
        return self._observation.state(name)

    def settled(self, name: str) -> bool:
        """See `Runtime.settled`. False until `apply` was called: what an earlier run wanted is not known."""
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
        """See `Runtime.stop`. The workload stays, with no pods. Raises RuntimeFailure if they have not ended yet."""
        placement = self._place(name)
        async with self._locks.holding(name):
            self._applied.pop(name, None)
            with failing(f"Component {name}: its end in namespace {placement.namespace}"):
                found = [
                    resource
                    for resource in (DEPLOYMENTS, STATEFUL_SETS)
                    if await self._scale_to_nothing(name, resource, placement)
                ]
                await self._ended(name, placement, workloads=found)
                async with unless_leaving(self._client, placement.namespace):
                    await self._remove_pull_secrets(name, placement.namespace)

    async def delete(self, name: str) -> None:
        """See `Runtime.delete`. Raises RuntimeFailure if the pods have not ended yet."""
        placement = self._place(name)
        async with self._locks.holding(name):
            self._applied.pop(name, None)
            with failing(f"Component {name}: its removal from namespace {placement.namespace}"):
                found = [
                    resource
                    for resource in (DEPLOYMENTS, STATEFUL_SETS)
                    # In the foreground: the workload is gone when its pods are.
                    if await self._remove(name, resource, placement, propagation="Foreground")
                ]
                await self._ended(name, placement, workloads=found)
                await self._claims.unprotect(name, placement=placement)
                await self._remove(name, PERSISTENT_VOLUME_CLAIMS, placement, object_name=claim_name(placement))
                async with unless_leaving(self._client, placement.namespace):
                    await self._remove(name, SECRETS, placement, object_name=files_secret_name(placement))
                    await self._remove_pull_secrets(name, placement.namespace)
                for resource in (NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, SERVICES):
                    await self._remove(name, resource, placement)

    async def volume(self, name: str) -> str | None:
        """See `Runtime.volume`. Raises RuntimeFailure if the cluster does not say."""
        return await self._claims.describe(name, placement=self._place(name))

    async def unprotect(self, name: str) -> None:
        """See `Runtime.unprotect`. Raises RuntimeFailure if the cluster refuses it."""
        async with self._locks.holding(name):
            await self._claims.unprotect(name, placement=self._place(name))

    async def data_mark(self, name: str) -> str | None:
        """See `Runtime.data_mark`. It is an annotation of the PersistentVolumeClaim."""
        return await self._claims.mark(name, placement=self._place(name))

    async def mark_data(self, name: str, mark: str) -> None:
        """See `Runtime.mark_data`."""
        async with self._locks.holding(name):
            await self._claims.set_mark(name, mark, placement=self._place(name))

    def subscribe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `Runtime.subscribe`. Called in the loop; what it raises is logged."""
        return self._subscribers.add(callback)

    def _image(self, program: str) -> Image:
        image = self._settings.images.get(program)
        if image is None:
            known = ", ".join(sorted(self._settings.images))
            raise RuntimeFailure(f"there is no image for program {program!r}, only for {known}")
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
        """Give the described workload the scheduling that it has now; returns whether another one is described."""
        applied = self._applied.get(name)
        live = observed
        if applied is not None and (live is None or live["metadata"]["generation"] < applied.generation):
            # A watch that lags would bring a former scheduling back.
            placement = self._place(name)
            with failing(f"Component {name}: its {resource.kind} in namespace {placement.namespace}"):
                live = await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name)
        return live is not None and hold_scheduling(described, live=live)

    def _is_applied(self, name: str, *, digest: str, live: Object | None) -> bool:
        known = self._applied.get(name)
        if known is None or live is None or known.digest != digest or time.monotonic() >= known.until:
            return False
        metadata = live["metadata"]
        # What is observed may be a little behind what was written, and is never ahead of it but by others.
        return bool(metadata["uid"] == known.uid and metadata["generation"] <= known.generation)

    async def _apply_workload(
        self, name: str, resource: Resource, described: Object, *, known: Object | None
    ) -> Object:
        """Apply the workload, and return its metadata; a new one only once no pod of a former one is left."""
        placement = self._place(name)
        applied = None
        if known is not None:
            # The one that was observed, or none: what is observed may be behind.
            metadata = {**described["metadata"], "uid": known["metadata"]["uid"]}
            try:
                applied = await self._client.apply(resource, {**described, "metadata": metadata}, force=True)
            except Conflict:
                await self._require_ended(name, resource, placement)
        if applied is None:
            applied = await self._client.apply(resource, described, force=True)
        found: Object = applied["metadata"]
        if "deletionTimestamp" in found:
            raise RuntimeFailure(
                f"Component {name}: its former {resource.kind} in namespace {placement.namespace} is not gone yet."
            )
        return found

    async def _require_ended(self, name: str, resource: Resource, placement: Placement) -> None:
        """Raise RuntimeFailure if a new workload would get pods beside those of a former one."""
        # The next workload adopts pods that no controller has.
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
        where = self._settings.pull_secrets_namespace
        for name in self._settings.pull_secrets:
            try:
                source = await self._client.get(SECRETS, name, namespace=where)
            except NotFound:
                # The kubelet goes on without it, and its pods tell of images that it then cannot pull.
                logger.warning("Secret %s/%s for pulling images does not exist", where, name)
                continue
            await self._client.apply(SECRETS, pull_secret(source, namespace=namespace), force=True)

    async def _remove_pull_secrets(self, name: str, namespace: str) -> None:
        """Remove the copies, unless another component beside this one runs, and may need them for its next pod."""
        async with self._pulling.holding(namespace):
            # What was written may not have been seen yet.
            known = {*self._applied, *(other for other in self.names() if self.state(other).phase is not Phase.ABSENT)}
            if any(self._place(other).namespace == namespace for other in known - {name}):
                return
            for copy in (await self._client.list(SECRETS, namespace=namespace, label_selector=PULL_SECRETS)).items:
                with contextlib.suppress(NotFound):
                    await self._client.delete(SECRETS, copy["metadata"]["name"], namespace=namespace)

    async def _scale_to_nothing(self, name: str, resource: Resource, placement: Placement) -> bool:
        """Take a workload's pods away; returns whether there is such a workload."""
        if await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name) is None:
            return False
        none = {"spec": {"replicas": 0}}
        await self._client.patch(resource, placement.name, none, namespace=placement.namespace)
        return True

    async def _ended(self, name: str, placement: Placement, *, workloads: Sequence[Resource]) -> None:
        """Wait until no pod of the component is left, nor comes from these workloads.

        What is observed says when to look. The API server says whether it is so, because a watch may lag.
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
                where = f"in namespace {placement.namespace}"
                raise RuntimeFailure(f"Component {name}: it has not ended {where} yet; pods: {left or 'none'}.")
        finally:
            unsubscribe()

    async def _left(self, name: str, placement: Placement, workloads: Sequence[Resource]) -> str | None:
        """Return the pods that are left, or are still to come; None if there are none, nor will be."""
        found = [
            await get_own(self._client, resource, placement.name, namespace=placement.namespace, of=name)
            for resource in workloads
        ]
        # In this order: a workload that has ended makes no more pods.
        pods = await self._living(name, placement)
        ended = all(workload is None or is_ended(workload) for workload in found)
        return None if ended and not pods else _names(pods)

    async def _living(self, name: str, placement: Placement) -> list[Object]:
        """Read from the API server which pods of the component may run."""
        found = await self._client.list(PODS, namespace=placement.namespace, label_selector=selector_of(name))
        return living(found.items)

    async def _remove(
        self,
        name: str,
        resource: Resource,
        placement: Placement,
        *,
        object_name: str | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Delete an object of the component, and none of that name that somebody else made.

        Returns whether there was one.
        """
        object_name = object_name or placement.name
        found = await get_own(self._client, resource, object_name, namespace=placement.namespace, of=name)
        if found is not None and "deletionTimestamp" not in found["metadata"]:
            with contextlib.suppress(NotFound):
                await self._client.delete(
                    resource,
                    object_name,
                    namespace=placement.namespace,
                    uid=found["metadata"]["uid"],
                    propagation=propagation,
                )
        return found is not None


def _has_controller(pod: Object) -> bool:
    return any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences", ()))


def _names(pods: Sequence[Object]) -> str:
    return ", ".join(pod["metadata"]["name"] for pod in pods)


def _canonical(host: str) -> str:
    """Return an address as certificates write it: another form would never be found in one."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _ports(known: Object) -> dict[str, int]:
    return {port["name"]: port["port"] for port in known["spec"].get("ports", ())}


def _claims(live: Object) -> list[Object]:
    """Return the claim templates of a StatefulSet without what the API server adds to them."""
    return [
        {"metadata": {k: v for k, v in claim["metadata"].items() if k in {"name", "labels"}}, "spec": claim["spec"]}
        for claim in live["spec"].get("volumeClaimTemplates", ())
    ]


def _digest(objects: list[Object]) -> str:
    return hashlib.sha256(json.dumps(objects, sort_keys=True).encode()).hexdigest()
