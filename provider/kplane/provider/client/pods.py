"""Logs, commands and ports of pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.body import query_of
from kplane.provider.client.calls import Calls
from kplane.provider.client.keys import Named, locate
from kplane.provider.client.resources import PODS, SERVICES
from kplane.provider.client.streams import port_forward, process, services
from kplane.provider.client.streams.channels import Channels, open_channels
from kplane.provider.client.streams.lines import Lines
from kplane.provider.client.streams.port_forward import PortForward
from kplane.provider.client.streams.process import ExecResult, Output, Process
from kplane.provider.client.streams.services import PodPort
from kplane.provider.client.transport import HttpRequest
from kplane.provider.errors import ProviderError, Unreachable

if TYPE_CHECKING:
    from kplane.provider.client.client import Client

__all__ = ["ExecResult", "Output", "Pods", "PortForward", "Process"]

_TEXT: Final = "text/plain, */*"


class Pods:
    """Reads logs of pods, runs commands in pods, and forwards ports to pods; see `Client.pods`.

    A pod is given by name and `namespace`, or by an object that has both, such as a `Request`. `container` may be
    omitted if the pod has a single container, or the annotation `kubectl.kubernetes.io/default-container`. Each method
    raises the errors of the methods of `Client`.
    """

    def __init__(self, client: Client, *, calls: Calls, adapted: Callable[[HttpRequest], HttpRequest]) -> None:
        """Create the API of a client's pods. `adapted` returns the request to send; `calls` sends it."""
        self._client = client
        self._calls = calls
        self._adapted = adapted

    async def logs(
        self,
        pod: str | Named,
        *,
        namespace: str | None = None,
        container: str | None = None,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
        previous: bool = False,
    ) -> str:
        """Return the log of a container: all lines, or the last `tail_lines`, or the lines of the last `since_seconds`.

        `previous` selects the container before its last restart. Bytes that are no UTF-8 are replaced. Raises
        AnswerTooLarge for a log of more than `limits.answer_bytes`.
        """
        query = _log_query(container, tail_lines, since_seconds, timestamps=timestamps) | {"previous": previous or None}
        request = self._request(pod, "log", namespace, query_of(query), accept=_TEXT)
        with self._client.limits.intake(server=self._client.config.server) as intake:
            return (await self._calls.body(request, intake=intake)).decode(errors="replace")

    def log_lines(
        self,
        pod: str | Named,
        *,
        namespace: str | None = None,
        container: str | None = None,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
        follow: bool = False,
    ) -> Lines:
        """Read a log line by line: `async with client.pods.log_lines(...) as lines: async for line in lines`.

        With `follow`, entering waits for the first line and the iteration for new lines, both without a deadline, until
        the container ends. Kubelets do not answer before the first line. Raises Unreachable if the peer of the
        connection is lost, within a minute.
        """
        query = _log_query(container, tail_lines, since_seconds, timestamps=timestamps) | {"follow": follow or None}
        return Lines(
            self._client.transport,
            self._request(pod, "log", namespace, query_of(query), accept=_TEXT),
            timeout_seconds=self._client.timeout_seconds,
            idle_timeout_seconds=None if follow else self._client.timeout_seconds,
            limits=self._client.limits,
        )

    async def exec(
        self,
        pod: str | Named,
        command: Sequence[str],
        *,
        namespace: str | None = None,
        container: str | None = None,
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a command in a container until it ends, with `stdin` as its input; return its output and exit code.

        The command runs without a shell; for a shell, give `["sh", "-c", "..."]`. The default of `timeout_seconds` is
        the client's. A command that runs at the deadline continues in the container. Raises Unreachable at the
        deadline, AnswerTooLarge for an output of more than `limits.answer_bytes`, and ApiError if the command cannot be
        run.
        """
        seconds = self._client.timeout_seconds if timeout_seconds is None else timeout_seconds
        chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        limit = asyncio.timeout(seconds)
        try:
            with self._calls.waiting(), self._client.limits.intake(server=self._client.config.server) as intake:
                async with (
                    limit,
                    self.open_exec(
                        pod, command, namespace=namespace, container=container, stdin=stdin is not None
                    ) as running,
                    _writing(running, stdin),
                ):
                    size_bytes = 0
                    async for output in running:
                        size_bytes += len(output.data)
                        if size_bytes > intake.answer_bytes:
                            raise intake.too_large(intake.answer_bytes)
                        intake.read(len(output.data))
                        chunks[output.stream].append(output.data)
                    code = await running.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            name, _ = locate(pod, namespace=namespace)
            raise Unreachable(
                f"failed to run {command[0]!r} in pod {name}: it did not end within {seconds:g} s; give a longer"
                " timeout_seconds",
                kind="timeout",
                write_sent=True,
            ) from None
        return ExecResult(code, b"".join(chunks["stdout"]), b"".join(chunks["stderr"]))

    @contextlib.asynccontextmanager
    async def open_exec(
        self,
        pod: str | Named,
        command: Sequence[str],
        *,
        namespace: str | None = None,
        container: str | None = None,
        stdin: bool = False,
    ) -> AsyncIterator[Process]:
        """Run a command in a container within the context, and read its output meanwhile; see `Process`.

        `write` and `close_stdin` need `stdin`. The deadline of the client applies to the start. Raises ProviderError
        for a string in place of a list of arguments, and for an empty list.
        """
        if isinstance(command, str) or not command:
            raise ProviderError(f"failed to run {command!r}: it is no list of arguments; write ['sh', '-c', '...']")
        selected = [("container", container)] if container is not None else []
        streams = ["stdin", "stdout", "stderr"] if stdin else ["stdout", "stderr"]
        query = [*selected, *((stream, "true") for stream in streams), *(("command", part) for part in command)]
        self._calls.require_write()
        request = self._request(pod, "exec", namespace, urlencode(query, quote_via=quote))
        request = replace(request, protocols=process.PROTOCOLS)
        async with self._channels(request) as channels:
            yield Process(channels, asked=str(request))

    @contextlib.asynccontextmanager
    async def port_forward(
        self,
        pod: str | Named,
        port: int,
        *,
        namespace: str | None = None,
        local_host: str = "localhost",
        local_port: int = 0,
    ) -> AsyncIterator[PortForward]:
        """Forward a local port to a port of a pod within the context; see `PortForward`, which has the local `port`.

        `local_port=0` takes a port that is free on all addresses of `local_host`. Raises NotFound for a missing pod,
        ProviderError if the pod does not run, and ListenFailed if the local port is taken.
        """
        name, _ = locate(pod, namespace=namespace)
        target_pod = await self._client.get(PODS, pod, namespace=namespace)
        phase = (target_pod.get("status") or {}).get("phase")
        if phase != "Running":
            raise ProviderError(f"failed to forward to pod {name}: it is {phase or 'Pending'}; wait until it runs")
        target = f"port {port} of pod {name}"
        async with PortForward(
            lambda: self._port_channels(pod, port, namespace), target=target, host=local_host, port=local_port
        ) as forward:
            yield forward

    @contextlib.asynccontextmanager
    async def port_forward_service(
        self,
        service: str | Named,
        port: int,
        *,
        namespace: str | None = None,
        local_host: str = "localhost",
        local_port: int = 0,
    ) -> AsyncIterator[PortForward]:
        """Forward a local port to a port of a Service within the context, as `port_forward` does to a pod.

        For each connection, the pods of the Service that are ready at that time are looked up. The connection goes to
        the pod that is ready longest, or to the next pod if this pod is unreachable. So new connections survive the end
        of a pod. Raises NotFound for a missing Service, ProviderError for a missing port or without a ready pod, and
        ListenFailed if the local port is taken.
        """
        name, namespace = locate(service, namespace=namespace)
        await self._serving(name, port, namespace)
        async with PortForward(
            lambda: self._service_channels(name, port, namespace),
            target=f"port {port} of Service {name}",
            host=local_host,
            port=local_port,
        ) as forward:
            yield forward

    async def _serving(self, service: str, port: int, namespace: str | None) -> Sequence[PodPort]:
        obj = await self._client.get(SERVICES, service, namespace=namespace)
        selector = services.selector_of(obj)
        pods = await self._client.list(PODS, namespace=namespace, label_selector=selector)
        return services.serving(obj, port, pods=pods.items)

    @contextlib.asynccontextmanager
    async def _service_channels(self, service: str, port: int, namespace: str | None) -> AsyncIterator[Channels]:
        """Open a WebSocket to the first reachable pod of a Service. Raises the error of the last pod otherwise."""
        *others, last = await self._serving(service, port, namespace)
        async with contextlib.AsyncExitStack() as stack:
            for backend in others:
                with contextlib.suppress(ProviderError):
                    opening = self._port_channels(backend.pod, backend.port, namespace)
                    channels = await stack.enter_async_context(opening)
                    break
            else:
                channels = await stack.enter_async_context(self._port_channels(last.pod, last.port, namespace))
            yield channels

    def _port_channels(
        self, pod: str | Named, port: int, namespace: str | None
    ) -> contextlib.AbstractAsyncContextManager[Channels]:
        request = self._request(pod, "portforward", namespace, query_of({"ports": port}))
        return self._channels(replace(request, protocols=port_forward.PROTOCOLS))

    def _channels(self, request: HttpRequest) -> contextlib.AbstractAsyncContextManager[Channels]:
        return open_channels(self._client.transport, request, timeout_seconds=self._client.timeout_seconds)

    def _request(
        self, pod: str | Named, subresource: str, namespace: str | None, query: str, *, accept: str = "*/*"
    ) -> HttpRequest:
        name, namespace = locate(pod, namespace=namespace)
        path = PODS.path(name, namespace=namespace, subresource=subresource)
        # The answer is no object: `received` of a NamespaceClient must not translate it.
        return replace(self._adapted(HttpRequest("GET", path, query, accept=accept)), received=None)


def _log_query(
    container: str | None, tail_lines: int | None, since_seconds: int | None, *, timestamps: bool
) -> dict[str, str | int | bool | None]:
    return {
        "container": container,
        "tailLines": tail_lines,
        "sinceSeconds": since_seconds,
        "timestamps": timestamps or None,
    }


@contextlib.asynccontextmanager
async def _writing(running: Process, stdin: bytes | None) -> AsyncIterator[None]:
    """Write to stdin while the caller reads the output, because a command may block on either side."""
    if stdin is None:
        yield
        return

    running.require_closing()

    async def write() -> None:
        # A command may end before it has read its input. The reader reports a failed connection.
        with contextlib.suppress(Unreachable):
            await running.write(stdin)
            await running.close_stdin()

    writing = asyncio.create_task(write(), name="write stdin of a command")
    try:
        yield
    finally:
        await end_tasks([writing])
