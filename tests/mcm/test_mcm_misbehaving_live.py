"""API servers that let their instance start and then harm it. Instances of other control planes are unaffected."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Client

from .control_planes import works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_CEILING_MIB = 160


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Content-Length: 256\r\n\r\n" + bytes(range(256)))


async def flood(writer: asyncio.StreamWriter) -> None:
    """Send about 40 MB a second, more than a reader can hold in memory for long."""
    writer.write(_HEAD + b"Connection: close\r\n\r\n")
    while True:
        writer.write(b'{"items":[' + b" " * (2 << 20))
        await writer.drain()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def misbehaving(directory: Path, answer: Answer) -> AsyncIterator[tuple[str, bytes]]:
    """Serve an API server that is healthy, accepts any Lease, and answers other requests with `answer`.

    Yields its address and its kubeconfig.
    """
    authority = create_authority("misbehaving")
    pair = issue_serving(authority, common_name="misbehaving", hosts=("127.0.0.1",))
    file = directory / f"{answer.__name__}.pem"
    file.write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)

    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, path = head.split()[:2]
                    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                    body = await reader.readexactly(int(length[1])) if length else b""
                    if b"/leases/" in path and method == b"GET":
                        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
                    elif b"/leases/" in path:
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    elif path.startswith((b"/healthz", b"/readyz", b"/livez")):
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    else:
                        await answer(writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cluster = {"server": address, "certificate-authority-data": base64.b64encode(authority.certificate).decode()}
    kubeconfig = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": "t"}}],
    }
    try:
        yield address, json.dumps(kubeconfig).encode()
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.timeout(420)
async def test_harmful_api_server_affects_only_its_own_instance(
    mcm: Any, fleet: Any, tenants: Any, eventually: Eventually, tmp_path: Path
) -> None:
    mcm.start(f"--instance-memory-mib={_CEILING_MIB}")
    answers = (hang, garbage, flood)
    async with contextlib.AsyncExitStack() as stack, Client(tenants["one"].config, field_manager="kplane") as one:
        good_name = await fleet.register("good", tenants["one"].controllers_secret(), server=tenants["one"].server)

        async def summary(name: str) -> dict[str, Any]:
            cluster: dict[str, Any] = (await asyncio.to_thread(mcm.clusters)).get(name, {})
            return cluster

        before = await eventually(lambda: summary(good_name), lambda found: found.get("state") == "Ready")
        bad_names: dict[Answer, str] = {}
        for answer in answers:
            address, kubeconfig = await stack.enter_async_context(misbehaving(tmp_path, answer))
            keys = {"kubeconfig": kubeconfig, "ca.crt": tenants["one"].authorities.serving.certificate}
            bad_names[answer] = await fleet.register(answer.__name__, keys, server=address)

        # The summaries show the harm of each API server.
        await eventually(lambda: summary(bad_names[flood]), lambda found: found.get("exits", {}).get("OutOfMemory"))
        await eventually(lambda: summary(bad_names[garbage]), lambda found: sum(found.get("exits", {}).values()))
        assert (await summary(bad_names[hang]))["state"] != "Ready"

        # The good instance works with the same process, and mcm stays ready.
        await works(one, eventually)
        after = await summary(good_name)
        assert (after["state"], after["pid"], after["restarts"]) == ("Ready", before["pid"], before["restarts"])
        assert (await asyncio.to_thread(mcm.get, "/readyz"))[0] == 200
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{mcm.process.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) < 200 << 10
