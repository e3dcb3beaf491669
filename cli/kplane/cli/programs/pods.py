"""Programs of kplane as pods of the management cluster, read through its API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from kplane.api import ControlPlaneRegistration, RegistrationMode, Service, quantity
from kplane.api.names import management_namespace
from kplane.cli.programs.base import Log, Program, Replica
from kplane.components.names import mcm_name
from kplane.mcm.describe.controllers import PROGRAM as CONTROLLERS_LOGGER
from kplane.mcm.describe.kinds import InstanceKind
from kplane.provider import ApiError, Client, NotFound, ProviderError
from kplane.provider.client.resources import PODS
from kplane.provider.errors import Forbidden
from kplane.workloads.last_words import last_fatal_line
from kplane.workloads.pods.objects import COMPONENT_LABEL, MANAGED, selector_of

__all__ = ["Pods", "instance_line", "pod_problem"]

_PART_OF: Final = "app.kubernetes.io/part-of=kplane"
_COMPONENT: Final = "app.kubernetes.io/component"
_VERSION: Final = "app.kubernetes.io/version"
_NAMESPACE: Final = "kplane-system"
_HTTP: Final = "http"
_METRICS: Final = "/apis/metrics.k8s.io/v1beta1/pods"
_ASK_SECONDS: Final = 5.0
"""Timeout of a request to a pod. If a NetworkPolicy drops the request of the API server, no answer arrives."""
_SEARCHED_LINES: Final = 50_000
"""Number of lines in the log of mcm that are searched for the lines of an instance."""
_IN_FILES: Final = (
    "mcm writes the logs of its instances to files of its pod; set mcm.instanceLogs to prefixed to read them here"
)
_BOTH: Final = "the log of mcm does not tell the programs of a registration apart: these are controllers and scheduler"
_QUIET_SECONDS: Final = 0.5
"""Time without a new line after which the past of a log is complete."""
_PAST_SECONDS: Final = 5.0
"""Time after which the past of a log without pauses is considered complete."""
_FAILED_CHECK: Final = re.compile(r"\[-\](.*?)(?:\\n|['\"]?$)")
"""A line of `/readyz`, in the message of an error, which quotes the answer."""
_BY_PROGRAM: Final = {str(program): program for program in Program}

Pod = dict[str, Any]


class Pods:
    """Reader of pods, with the rights of the user; see `kplane.cli.programs.base.Programs`."""

    def __init__(self, client: Client, *, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._serving: dict[str, _Serving] = {}
        """Serving container by pod, from the last list."""

    @classmethod
    async def of(cls, client: Client) -> Self | None:
        """Search for the namespace of the programs. Returns None if there is none."""
        try:
            pods = (await client.list(PODS, label_selector=f"{_PART_OF},{_COMPONENT}=operator")).items
        except Forbidden:
            pods = (await client.list(PODS, namespace=_NAMESPACE, label_selector=_PART_OF)).items
        return cls(client, namespace=pods[0]["metadata"]["namespace"]) if pods else None

    @property
    def place(self) -> str:
        """Description of the pods' namespace."""
        return f"pods in namespace {self._namespace}"

    @property
    def namespace(self) -> str | None:
        """Namespace of the pods."""
        return self._namespace

    @property
    def required(self) -> Sequence[Program]:
        """Programs of each installation. Gateway and etcd are optional."""
        return [Program.OPERATOR, Program.MCM]

    @property
    def start(self) -> str:
        """Command that shows the workloads of the pods, and why pods are missing."""
        return f"kubectl describe deployments,statefulsets -n {self._namespace} -l {_PART_OF}"

    @property
    def upgrade(self) -> str:
        """Command that upgrades the chart."""
        return "kplane upgrade"

    async def replicas(self) -> Sequence[Replica]:
        """Return the pods that are not being deleted."""
        pods = await self._pods()
        problems = await asyncio.gather(*map(self._problem, pods))
        replicas = [
            Replica(
                program=program,
                name=pod["metadata"]["name"],
                problem=problem,
                version=pod["metadata"]["labels"].get(_VERSION, "") if program is not Program.ETCD else "",
                look=f"kubectl describe pod -n {self._namespace} {pod['metadata']['name']}",
            )
            for pod, problem in zip(pods, problems, strict=True)
            if (program := _BY_PROGRAM.get(pod["metadata"]["labels"].get(_COMPONENT, ""))) is not None
        ]
        order = list(Program)
        return sorted(replicas, key=lambda each: (order.index(each.program), each.name))

    async def _pods(self) -> Sequence[Pod]:
        pods = (await self._client.list(PODS, namespace=self._namespace, label_selector=_PART_OF)).items
        self._serving = {pod["metadata"]["name"]: serving for pod in pods if (serving := _serving(pod)) is not None}
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def _problem(self, pod: Pod) -> str:
        """Return why a pod is not ready; with the failed checks of its program, if the program runs and answers."""
        problem = pod_problem(pod)
        if not problem or (pod.get("status") or {}).get("phase") != "Running":
            return problem
        try:
            await self._get(pod["metadata"]["name"], "/readyz")
        except ProviderError as error:
            return "; ".join([problem, *_FAILED_CHECK.findall(str(error))])
        return problem

    async def ask(self, replica: Replica, path: str) -> str:
        """Return the answer of a pod to a path, through the proxy of the API server."""
        return await self._get(replica.name, path)

    async def _get(self, name: str, path: str) -> str:
        serving = self._serving.get(name)
        if serving is None:
            raise NotFound(404, "NotFound", f"pod {name} has no port {_HTTP}")
        base = PODS.path(f"{name}:{serving.port}", namespace=self._namespace, subresource="proxy")
        return await self._client.text(base + path, timeout_seconds=_ASK_SECONDS)

    def log(self, replica: Replica) -> Log:
        """Return the log of the serving container of a pod, or of its only container."""
        serving = self._serving.get(replica.name)
        container = serving.container if serving is not None else None
        return _PodLog(self._client, self._namespace, replica.name, container=container)

    async def component_logs(self, component: str, *, namespace: str) -> Sequence[Log]:
        """Return the logs of the pods of a component."""
        pods = await self._client.list(PODS, namespace=namespace, label_selector=selector_of(component))
        return [_PodLog(self._client, namespace, pod["metadata"]["name"]) for pod in pods.items]

    async def instance_logs(self, registration: ControlPlaneRegistration, *, kind: InstanceKind) -> Sequence[Log]:
        """Return the lines of an instance from the logs of mcm's pods, because the instance can move between pods."""
        del kind
        note = _BOTH if {Service.CONTROLLERS, Service.SCHEDULER} <= set(registration.status.services) else ""
        if registration.spec.mode is RegistrationMode.DEDICATED:
            control_plane = registration.spec.control_plane_ref.name
            component = mcm_name(control_plane, uid=registration.metadata.uid or "")
            logs = await self.component_logs(component, namespace=management_namespace(control_plane))
        else:
            logs = [self.log(replica) for replica in await self.replicas() if replica.program is Program.MCM]
        return [_InstanceLog(log, registration.name, note=note) for log in logs]

    async def memory(self) -> Mapping[str, int]:
        """Return the measurements of the metrics server, if there is one. The pods of a component are added up."""
        try:
            answer = await self._client.request("GET", _METRICS, params={"labelSelector": MANAGED})
        except NotFound:
            return {}
        except ApiError as error:
            if error.status == 503:
                return {}
            raise
        sizes_by_component: dict[str, int] = {}
        for pod in answer.get("items") or ():
            component = pod["metadata"]["labels"].get(COMPONENT_LABEL, "")
            sizes = [int(quantity(container["usage"]["memory"])) for container in pod.get("containers") or ()]
            sizes_by_component[component] = sizes_by_component.get(component, 0) + sum(sizes)
        return sizes_by_component


def pod_problem(pod: Pod) -> str:
    """Return the reason why a pod is not ready; empty if it is ready."""
    status = pod.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True":
        return ""
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting"), (container.get("lastState") or {}).get("terminated")
        if waiting is not None:
            last = f"; it ended before: {_words(ended)}" if ended is not None else ""
            return f"container {container['name']} waits: {_words(waiting)}{last}"
        if state.get("terminated") is not None and not container.get("ready"):
            return f"container {container['name']} ended: {_words(state['terminated'])}"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"it is not scheduled: {_words(scheduled)}"
    return f"it is {status.get('phase', 'Pending')} and not ready"


def _words(state: Mapping[str, Any]) -> str:
    text = state.get("message") or ""
    message = " ".join((last_fatal_line(text) or text).split())
    return f"{state.get('reason', 'unknown')}{f': {message[-300:]}' if message else ''}"


@dataclass(frozen=True, slots=True)
class _Serving:
    """Serving container of a pod, and its port."""

    container: str
    port: int


def _serving(pod: Pod) -> _Serving | None:
    """Return the serving container, which may be a sidecar among the init containers."""
    spec = pod["spec"]
    return next(
        (
            _Serving(container["name"], port["containerPort"])
            for container in [*(spec.get("initContainers") or ()), *spec["containers"]]
            for port in container.get("ports") or ()
            if port.get("name") == _HTTP
        ),
        None,
    )


@dataclass(frozen=True, slots=True)
class _PodLog:
    """Log of a container of a pod. `container` is None if the pod has a single container."""

    client: Client
    namespace: str
    name: str
    note: str = ""
    silence: str = ""
    container: str | None = None

    async def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        """Yield the last lines, or all if `last` is None.

        With `follow`, then yield new lines until the container ends.
        """
        async with self.client.pods.log_lines(
            self.name, namespace=self.namespace, container=self.container, tail_lines=last, follow=follow
        ) as lines:
            async for line in lines:
                yield line


@dataclass(frozen=True, slots=True)
class _InstanceLog:
    """Lines of an instance in a log of mcm."""

    log: Log
    registration: str
    note: str = ""
    silence: str = _IN_FILES

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.log.name

    async def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        """Yield the last lines, or all if `last` is None. With `follow`, then yield each new line."""
        searched = self.log.lines(last=_SEARCHED_LINES, follow=follow)
        recent = deque[str](maxlen=last)
        async with contextlib.aclosing(searched), contextlib.aclosing(_in_time(searched, follow=follow)) as lines:
            is_past = True
            async for line in lines:
                if line is None:
                    is_past = False
                    for past_line in recent:
                        yield past_line
                elif (own_line := instance_line(line, self.registration)) is None:
                    continue
                elif is_past:
                    recent.append(own_line)
                else:
                    yield own_line


async def _in_time(lines: AsyncGenerator[str, None], *, follow: bool) -> AsyncGenerator[str | None, None]:
    """Yield lines, and None once after the lines of the past: at the end, or with `follow` at the first pause."""
    clock = asyncio.get_running_loop().time
    deadline, is_past, quiet = clock() + _PAST_SECONDS, True, _PAST_SECONDS
    task = asyncio.ensure_future(_next(lines))
    try:
        while True:
            if is_past and follow:
                await asyncio.wait({task}, timeout=min(quiet, max(0.0, deadline - clock())))
                if not task.done():
                    is_past = False
                    yield None
            if (line := await task) is None:
                break
            yield line
            quiet = _QUIET_SECONDS
            task = asyncio.ensure_future(_next(lines))
    finally:
        task.cancel()
        await asyncio.wait({task})
    if is_past:
        yield None


async def _next(lines: AsyncGenerator[str, None]) -> str | None:
    return await anext(lines, None)


def instance_line(line: str, registration: str) -> str | None:
    """Return the part of a line of mcm's log about the instances of a registration; None if it is about others."""
    prefix = f"[{registration}] "
    if line.startswith(prefix):
        return line.removeprefix(prefix)
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if entry.get("cluster") != registration:
        return None
    message = str(entry.get("message", ""))
    return message if entry.get("logger") == CONTROLLERS_LOGGER else f"mcm: {message}"
