"""What the cluster tells of components: the objects as they are now, and what that means."""

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
    """Keeps copies of all components' Services, workloads and pods while `run` runs."""

    def __init__(self, client: Client, *, place: Callable[[str], Placement], on_change: Callable[[str], None]) -> None:
        """`on_change` gets the name of each component of which an object changed."""
        self._place = place
        self._on_change = on_change
        self._services, self._deployments, self._stateful_sets, self._pods = (
            Informer(client, resource, label_selector=MANAGED, relist_seconds=_RELIST_SECONDS)
            for resource in (SERVICES, DEPLOYMENTS, STATEFUL_SETS, PODS)
        )
        self._pods_of: dict[str, dict[tuple[str, str], Object]] = {}

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._services, self._deployments, self._stateful_sets):
                tasks.create_task(informer.run(self._changed), name=f"follow {informer}")
            tasks.create_task(self._pods.run(self._pod_changed), name=f"follow {self._pods}")

    async def synced(self) -> None:
        """Return when everything was listed once."""
        for informer in (self._services, self._deployments, self._stateful_sets, self._pods):
            await informer.synced.wait()

    def service(self, name: str) -> Object | None:
        """Return the Service of a component."""
        return self._find(self._services, name)

    def workload(self, name: str, *, resource: Resource) -> Object | None:
        """Return the Deployment or StatefulSet of a component."""
        return self._find(self._stateful_sets if resource == STATEFUL_SETS else self._deployments, name)

    def pods(self, name: str) -> list[Object]:
        """Return the pods of a component."""
        return list(self._pods_of.get(name, {}).values())

    def names(self, *, prefix: str = "") -> list[str]:
        """Return the components that have a Service or a workload."""
        informers = (self._services, self._deployments, self._stateful_sets)
        found = {entry.labels[COMPONENT_LABEL] for each in informers for entry in each.entries()}
        # Whoever can write labels could name a component of another namespace.
        wanted = (name for name in found if name.startswith(prefix))
        return sorted(name for name in wanted if any(self._entry(each, name) for each in informers))

    def ended(self, name: str) -> bool:
        """Return whether a component has no pods left, nor will get any, as far as is known here.

        A watch may lag: an absent workload may not have been seen yet. Ask the API server before you rely on it.
        """
        workload = self._workload(name)
        return (workload is None or is_ended(workload)) and not self._living(name)

    def settled(self, name: str, *, generation: int) -> bool:
        """Return whether all pods are ready and of this generation of the workload, and no other is left."""
        workload = self._workload(name)
        if workload is None or workload["metadata"]["generation"] < generation:
            return False
        status, replicas = workload.get("status", {}), workload["spec"].get("replicas", 1)
        told = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
        counted = {status.get(counter, 0) for counter in ("replicas", "updatedReplicas", "readyReplicas")}
        # A pod that is ending serves the connections that it has.
        return told and counted == {replicas} and replicas == len(self._living(name)) > 0

    def state(self, name: str) -> ComponentState:
        """Say what the objects of a component come to."""
        workload, pods = self._workload(name), self.pods(name)
        restarts = max((_restarts(pod) for pod in pods), default=0)
        ending = Phase.STOPPING if pods else Phase.ABSENT
        if workload is None:
            return ComponentState(name=name, phase=ending, restarts=restarts)
        version = Image(_image(_template(workload))).version
        if not workload["spec"].get("replicas", 1):
            return ComponentState(name=name, phase=ending, restarts=restarts, version=version)
        troubles = [trouble for pod in pods for trouble in _troubles(pod)]
        message = ("; ".join(dict.fromkeys(told for _, told in troubles)) or _conditions(workload))[:_MESSAGE_LIMIT]
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
        """Return where a component is; None for a name that somebody else made up and put on a label."""
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
        found = informer.entry(placement.name, namespace=placement.namespace)
        return found if found is not None and found.labels[COMPONENT_LABEL] == name else None

    def _changed(self, event: Event) -> None:
        self._on_change(event.labels[COMPONENT_LABEL])

    def _pod_changed(self, event: Event) -> None:
        pod = event.object
        name, key = _component(pod), (pod["metadata"]["namespace"], pod["metadata"]["name"])
        placement = self._placement(name)
        if placement is None or placement.namespace != key[0]:
            return
        known = self._pods_of.setdefault(name, {})
        if event.kind == "DELETED":
            known.pop(key, None)
        else:
            known[key] = pod
        if not known:
            del self._pods_of[name]
        self._on_change(name)


def is_ended(workload: Object) -> bool:
    """Return whether a workload that is not being deleted has no pods, and will get none."""
    status, metadata = workload.get("status", {}), workload["metadata"]
    acted = status.get("observedGeneration", 0) >= metadata["generation"] and not status.get("replicas", 0)
    return acted and not workload["spec"].get("replicas", 1) and "deletionTimestamp" not in metadata


def living(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that run or may still: one that was evicted stays as an object, and its processes do not."""
    return [pod for pod in pods if pod.get("status", {}).get("phase") not in _OVER]


def _component(obj: Object) -> str:
    return str(obj["metadata"]["labels"][COMPONENT_LABEL])


def _is_rolling(workload: Object, *, pods: Iterable[Object]) -> bool:
    """Return whether pods of a former description are left, or pods of the present one are missing."""
    status, wanted = workload.get("status", {}), workload["spec"].get("replicas", 1)
    updated = status.get("updatedReplicas", 0)
    if status.get("observedGeneration", 0) < workload["metadata"]["generation"] or updated < wanted:
        return True
    # One that is ending is no replica any more, and may still be asked something.
    return status.get("replicas", 0) > updated or any(
        _image(pod["spec"]) != _image(_template(workload)) for pod in pods
    )


def _is_unplaced(workload: Object, *, pods: Sequence[Object]) -> bool:
    """Return whether the scheduler has found no node for a pod, or there is no pod, or one that is refused."""
    told = (condition for each in (workload, *pods) for condition in each.get("status", {}).get("conditions", ()))
    failures = {("PodScheduled", "False"), ("ReplicaFailure", "True")}
    return not pods or any((condition["type"], condition["status"]) in failures for condition in told)


def _template(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def _image(spec: Object) -> str:
    return str(spec["containers"][0]["image"])


def _restarts(pod: Object) -> int:
    return sum(container.get("restartCount", 0) for container in pod.get("status", {}).get("containerStatuses", ()))


def _was_ready(pod: Object) -> bool:
    """Return whether the pod was ready since its program was started last: its condition has changed since then."""
    status = pod.get("status", {})
    changed = next((c.get("lastTransitionTime") for c in status.get("conditions", ()) if c["type"] == "Ready"), None)
    started = [c["state"]["running"]["startedAt"] for c in status.get("containerStatuses", ()) if _runs(c)]
    # Both are of one clock, with seconds, in a form that sorts.
    return changed is not None and any(at < changed for at in started)


def _runs(container: Object) -> bool:
    return "startedAt" in container.get("state", {}).get("running", {})


def _troubles(pod: Object) -> Iterator[tuple[str, str]]:
    """Say what keeps a pod from running: reasons, each with a sentence for people."""
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
    said = terminated.get("message", "").strip()
    fatal = last_fatal_line(said)
    # Before the end of the log, which is cut.
    first = f"its last fatal line is: {fatal}; " if fatal and fatal != said else ""
    return f"{terminated.get('reason', 'ended')}, exit code {terminated.get('exitCode')}" + (
        f": {first}{said}" if said else ""
    )


def _conditions(workload: Object) -> str:
    """Say what a workload tells of itself: a pod that is refused exists nowhere else."""
    return "; ".join(
        condition.get("message", "")
        for condition in workload.get("status", {}).get("conditions", ())
        if (condition["type"], condition["status"]) in {("ReplicaFailure", "True"), ("Progressing", "False")}
    )
