"""Observation of components: copies of their objects in the cluster, and the states derived from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kplane.provider import Client, Event, Informer, Resource
from kplane.provider.cache.entry import Entry
from kplane.provider.client.resources import DEPLOYMENTS, PODS, SERVICES, STATEFUL_SETS
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.last_words import last_fatal_line
from kplane.workloads.pods.objects import COMPONENT_LABEL, MANAGED, Object
from kplane.workloads.pods.settings import Image, Placement
from kplane.workloads.runtime import ComponentState, Phase

__all__ = ["Observation", "is_ended", "living"]

logger = logging.getLogger(__name__)

_BACKOFF_REASON: Final = "CrashLoopBackOff"
_NO_IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})
_FINE_REASONS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_OVER: Final = frozenset({"Failed", "Succeeded"})
_MESSAGE_LIMIT: Final = 1000
_RELIST_SECONDS: Final = 600.0


class Observation:
    """Keeps copies of the Services, workloads and pods of all components while `run` runs."""

    def __init__(self, client: Client, *, place: Callable[[str], Placement], on_change: Callable[[str], None]) -> None:
        """`on_change` gets the name of a component when an object of the component changes."""
        self._place = place
        self._on_change = on_change
        self._services, self._deployments, self._stateful_sets, self._pods = (
            Informer(client, resource, label_selector=MANAGED, relist_seconds=_RELIST_SECONDS)
            for resource in (SERVICES, DEPLOYMENTS, STATEFUL_SETS, PODS)
        )
        self._pods_of: dict[str, dict[tuple[str, str], Object]] = {}

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._services, self._deployments, self._stateful_sets):
                tasks.create_task(informer.run(self._changed), name=f"follow {informer}")
            tasks.create_task(self._pods.run(self._pod_changed), name=f"follow {self._pods}")

    async def synced(self) -> None:
        """Wait until all objects were listed once."""
        for informer in (self._services, self._deployments, self._stateful_sets, self._pods):
            await informer.synced.wait()

    def service(self, name: str) -> Object | None:
        """Return the Service of a component; None if it is not observed."""
        return self._find(self._services, name)

    def workload(self, name: str, *, resource: Resource) -> Object | None:
        """Return the Deployment or StatefulSet of a component; None if it is not observed."""
        return self._find(self._stateful_sets if resource == STATEFUL_SETS else self._deployments, name)

    def pods(self, name: str) -> list[Object]:
        """Return the pods of a component."""
        return list(self._pods_of.get(name, {}).values())

    def names(self, *, prefix: str = "") -> list[str]:
        """Return the components that have a Service or a workload."""
        informers = (self._services, self._deployments, self._stateful_sets)
        components = {entry.labels[COMPONENT_LABEL] for informer in informers for entry in informer.entries()}
        # A user who can write labels could name a component of another namespace: compare the placement too.
        candidates = (name for name in components if name.startswith(prefix))
        return sorted(name for name in candidates if any(self._entry(informer, name) for informer in informers))

    def ended(self, name: str) -> bool:
        """Return whether the observed component has no pods, and will get none.

        A watch may lag: an existing workload may not have been observed yet. Ask the API server before you rely on the
        result.
        """
        workload = self._workload(name)
        return (workload is None or is_ended(workload)) and not self._living(name)

    def settled(self, name: str, *, generation: int) -> bool:
        """Return whether all pods are ready and of this generation or a later generation, and no other pod is left."""
        workload = self._workload(name)
        if workload is None or workload["metadata"]["generation"] < generation:
            return False
        status, replicas = workload.get("status", {}), workload["spec"].get("replicas", 1)
        observed = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
        counted = {status.get(counter, 0) for counter in ("replicas", "updatedReplicas", "readyReplicas")}
        # A pod that is ending still serves its connections.
        return observed and counted == {replicas} and replicas == len(self._living(name)) > 0

    def state(self, name: str) -> ComponentState:
        """Return the state of a component, derived from its observed objects."""
        workload, pods = self._workload(name), self.pods(name)
        restarts = max((_restarts(pod) for pod in pods), default=0)
        ending = Phase.STOPPING if pods else Phase.ABSENT
        if workload is None:
            return ComponentState(name=name, phase=ending, restarts=restarts)
        version = Image(_image(_template(workload))).version
        if not workload["spec"].get("replicas", 1):
            return ComponentState(name=name, phase=ending, restarts=restarts, version=version)
        troubles = [trouble for pod in pods for trouble in _troubles(pod)]
        message = ("; ".join(dict.fromkeys(text for _, text in troubles)) or _conditions(workload))[:_MESSAGE_LIMIT]
        living = self._living(name)
        rolling = _is_rolling(workload, pods=living)
        if workload.get("status", {}).get("readyReplicas", 0):
            phase, message = Phase.READY, message if rolling else ""
        elif any(reason == _BACKOFF_REASON for reason, _ in troubles):
            phase = Phase.BACKOFF
        elif any(_was_ready(pod) for pod in pods):
            phase = Phase.UNREADY
        else:
            phase = Phase.STARTING
        return ComponentState(
            name=name,
            phase=phase,
            message=message,
            restarts=restarts,
            version=version,
            rolling=rolling,
            unplaced=_is_unplaced(workload, pods=living),
            unobtainable=phase is not Phase.READY and any(reason in _NO_IMAGE_REASONS for reason, _ in troubles),
        )

    def _workload(self, name: str) -> Object | None:
        return self._find(self._deployments, name) or self._find(self._stateful_sets, name)

    def _living(self, name: str) -> list[Object]:
        return living(self.pods(name))

    def _placement(self, name: str) -> Placement | None:
        """Return the placement of a component; None for a label with a name that the runtime's owner did not make."""
        try:
            return self._place(name)
        except RuntimeFailure:
            return None

    def _find(self, informer: Informer, name: str) -> Object | None:
        entry = self._entry(informer, name)
        return informer.get(entry.name, namespace=entry.namespace) if entry is not None else None

    def _entry(self, informer: Informer, name: str) -> Entry | None:
        placement = self._placement(name)
        if placement is None:
            return None
        entry = informer.entry(placement.name, namespace=placement.namespace)
        return entry if entry is not None and entry.labels[COMPONENT_LABEL] == name else None

    def _changed(self, event: Event) -> None:
        self._on_change(event.labels[COMPONENT_LABEL])

    def _pod_changed(self, event: Event) -> None:
        pod = event.object
        name, key = _component(pod), (pod["metadata"]["namespace"], pod["metadata"]["name"])
        placement = self._placement(name)
        if placement is None or placement.namespace != key[0]:
            return
        pods = self._pods_of.setdefault(name, {})
        if event.kind == "DELETED":
            pods.pop(key, None)
        else:
            pods[key] = pod
        if not pods:
            del self._pods_of[name]
        self._on_change(name)


def is_ended(workload: Object) -> bool:
    """Return whether a workload that is not being deleted has no pods, and will get none."""
    status, metadata = workload.get("status", {}), workload["metadata"]
    acted = status.get("observedGeneration", 0) >= metadata["generation"] and not status.get("replicas", 0)
    return acted and not workload["spec"].get("replicas", 1) and "deletionTimestamp" not in metadata


def living(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that run or may still run. An evicted pod remains as an object, without processes."""
    return [pod for pod in pods if pod.get("status", {}).get("phase") not in _OVER]


def _component(obj: Object) -> str:
    return str(obj["metadata"]["labels"][COMPONENT_LABEL])


def _is_rolling(workload: Object, *, pods: Iterable[Object]) -> bool:
    """Return whether pods of a former description are left, or pods of the present description are missing."""
    status, replicas = workload.get("status", {}), workload["spec"].get("replicas", 1)
    updated = status.get("updatedReplicas", 0)
    if status.get("observedGeneration", 0) < workload["metadata"]["generation"] or updated < replicas:
        return True
    # A pod that is ending is not counted as a replica any more, and may still receive requests.
    return status.get("replicas", 0) > updated or any(
        _image(pod["spec"]) != _image(_template(workload)) for pod in pods
    )


def _is_unplaced(workload: Object, *, pods: Sequence[Object]) -> bool:
    """Return whether a pod has no node, or is refused, or no pod exists."""
    conditions = (condition for obj in (workload, *pods) for condition in obj.get("status", {}).get("conditions", ()))
    failures = {("PodScheduled", "False"), ("ReplicaFailure", "True")}
    return not pods or any((condition["type"], condition["status"]) in failures for condition in conditions)


def _template(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def _image(spec: Object) -> str:
    return str(spec["containers"][0]["image"])


def _restarts(pod: Object) -> int:
    return sum(container.get("restartCount", 0) for container in pod.get("status", {}).get("containerStatuses", ()))


def _was_ready(pod: Object) -> bool:
    """Return whether the pod was ready since the last start of its program, after which its Ready condition changed."""
    status = pod.get("status", {})
    changed = next((c.get("lastTransitionTime") for c in status.get("conditions", ()) if c["type"] == "Ready"), None)
    started = [c["state"]["running"]["startedAt"] for c in status.get("containerStatuses", ()) if _runs(c)]
    # Both times are from the same clock, in seconds, in a form that sorts.
    return changed is not None and any(at < changed for at in started)


def _runs(container: Object) -> bool:
    return "startedAt" in container.get("state", {}).get("running", {})


def _troubles(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield the problems that keep a pod from running: the reason, and a sentence for people."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield condition.get("reason", ""), f"pod {name} has no node: {condition.get('message', '')}"
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting and waiting.get("reason") not in _FINE_REASONS:
            ended = container.get("lastState", {}).get("terminated", {})
            why = _end(ended) if ended else waiting.get("message", "")
            yield waiting.get("reason", ""), f"pod {name}: {waiting.get('reason', 'waiting')}: {why}"
        elif "terminated" in container.get("state", {}):
            yield "Terminated", f"pod {name} ended: {_end(container['state']['terminated'])}"


def _end(terminated: Object) -> str:
    message = terminated.get("message", "").strip()
    fatal = last_fatal_line(message)
    # The fatal line precedes the end of the log, which may be cut.
    first = f"its last fatal line is: {fatal}; " if fatal and fatal != message else ""
    return f"{terminated.get('reason', 'ended')}, exit code {terminated.get('exitCode')}" + (
        f": {first}{message}" if message else ""
    )


def _conditions(workload: Object) -> str:
    """Return the messages of the failing conditions of a workload. Only they report a pod that is refused."""
    return "; ".join(
        condition.get("message", "")
        for condition in workload.get("status", {}).get("conditions", ())
        if (condition["type"], condition["status"]) in {("ReplicaFailure", "True"), ("Progressing", "False")}
    )
