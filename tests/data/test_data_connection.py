"""A persistent connection: renewed credentials, lost connections, deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.data import Client, Credentials, DataError, EtcdError, Permission, PermissionDenied, TimedOut, Unreachable
from kplane.pki.primitives import create_authority, issue_client

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:2379", "http://127.0.0.1:2379", "https://", "https://h:1/path"])
def test_client_refuses_endpoint_that_is_no_https_url(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not the URL of an etcd"):
        Client(endpoint, credentials=Credentials.in_directory(tmp_path))


async def test_calls_share_one_connection(etcd: Any, client: Client, prefix: str) -> None:
    for number in range(20):
        await client.put(f"{prefix}{number}".encode(), b"")
    await asyncio.gather(*(client.count(prefix) for _ in range(20)))
    assert len(_connections(etcd.port)) == 1


async def test_next_call_uses_renewed_credentials(etcd: Any, client: Client, prefix: str, tmp_path: Path) -> None:
    for user in ("before", "after"):
        await _add(client, user, prefix=f"{prefix}{user}/")
    files = etcd.credentials("before", tmp_path / "user")
    async with Client(etcd.url, credentials=files) as user_client:
        await user_client.put(f"{prefix}before/key".encode(), b"")
        with pytest.raises(PermissionDenied):
            await user_client.put(f"{prefix}after/key".encode(), b"")

        etcd.write(files, ca=etcd.authority.certificate, pair=etcd.issue("after"))

        await user_client.put(f"{prefix}after/key".encode(), b"")
        with pytest.raises(PermissionDenied):
            await user_client.put(f"{prefix}before/key".encode(), b"")


async def test_next_call_uses_other_files_without_abort_of_earlier_calls(
    etcd: Any, client: Client, prefix: str, tmp_path: Path
) -> None:
    await _add(client, "other", prefix=f"{prefix}other/")
    other_files = etcd.credentials("other", tmp_path / "other")
    calls = [asyncio.create_task(client.count(prefix)) for _ in range(50)]
    await asyncio.sleep(0)
    client.connection.use(other_files)
    with pytest.raises(PermissionDenied):
        await client.count(prefix)
    assert await asyncio.gather(*calls) == [0] * 50


async def test_client_raises_unreachable_and_recovers_with_etcd(etcd: Any, client: Client, prefix: str) -> None:
    await client.put(f"{prefix}key".encode(), b"value")
    etcd.stop()
    try:
        for _ in range(3):
            with pytest.raises(Unreachable, match=etcd.url):
                await client.count(prefix)
    finally:
        etcd.start()
    deadline = time.monotonic() + 60
    while (problem := await client.problem()) is not None:
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(0.05)
    assert await client.count(prefix) == 1


async def test_client_refuses_server_certificate_of_another_ca(etcd: Any, tmp_path: Path) -> None:
    stranger = create_authority("stranger")
    files = etcd.credentials("root", tmp_path / "stranger")
    etcd.write(files, ca=stranger.certificate, pair=etcd.issue("root"))
    async with Client(etcd.url, credentials=files) as client:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.count("/tests/")


async def test_etcd_refuses_client_certificate_of_another_ca(etcd: Any, tmp_path: Path) -> None:
    files = etcd.credentials("root", tmp_path / "stranger")
    etcd.write(files, ca=etcd.authority.certificate, pair=issue_client(create_authority("stranger"), user="root"))
    async with Client(etcd.url, credentials=files) as client:
        with pytest.raises(Unreachable):
            await client.count("/tests/")


async def test_call_to_silent_server_raises_timed_out_at_deadline(etcd: Any, tmp_path: Path) -> None:
    async with _silent(etcd) as url:
        files = etcd.credentials("root", tmp_path / "root")
        async with Client(url, credentials=files, timeout_seconds=0.3) as client:
            with pytest.raises(TimedOut, match=f"failed to call Range of etcd at {url}: "):
                await client.count("/tests/")
            assert "failed to call Range" in str(await client.problem())


async def test_close_fails_calls_in_flight_with_unreachable(etcd: Any, tmp_path: Path) -> None:
    async with _silent(etcd) as url:
        client = Client(url, credentials=etcd.credentials("root", tmp_path / "root"), timeout_seconds=60)
        call = asyncio.create_task(client.count("/tests/"))
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(Unreachable, match="the connection was closed"):
            await call


async def test_cancelled_call_raises_cancelled_error(etcd: Any, tmp_path: Path) -> None:
    files = etcd.credentials("root", tmp_path / "root")
    async with _silent(etcd) as url, Client(url, credentials=files, timeout_seconds=60) as client:
        call = asyncio.create_task(client.count("/tests/"))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_constant_access_changes_fail_no_call(client: Client, prefix: str, new_prefix: Callable[[], str]) -> None:
    # etcd refuses a read whose user was checked before the last change of any user.
    stop = asyncio.Event()

    async def change() -> int:
        changes = 0
        while not stop.is_set():
            await _add(client, f"user-{prefix}-{changes}", prefix=new_prefix())
            changes += 1
        return changes

    change_task = asyncio.create_task(change())
    for _ in range(20):
        assert await asyncio.gather(*(client.count(prefix) for _ in range(20))) == [0] * 20
    stop.set()
    assert await change_task


async def test_etcd_error_has_message_of_etcd(etcd: Any, client: Client) -> None:
    with pytest.raises(EtcdError) as caught:
        await client.access.grant_permission("nobody", Permission.below("/x/"))
    assert str(caught.value) == (
        f"failed to call RoleGrantPermission of etcd at {etcd.url}: etcdserver: role name not found"
    )


async def _add(client: Client, user: str, *, prefix: str) -> None:
    await client.access.add_role(user)
    await client.access.grant_permission(user, Permission.below(prefix))
    await client.access.add_user(user)
    await client.access.grant_role(user, user)


@contextlib.asynccontextmanager
async def _silent(etcd: Any) -> AsyncIterator[str]:
    """Run a server that completes the TLS handshake and sends no data. Yields its URL."""

    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.current_task()] = writer
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(etcd.directory / "tls" / "server.crt", etcd.directory / "tls" / "server.key")
    tls.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=tls)
    try:
        yield "https://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        # The client waits some seconds for an answer to its handshake, also after it was closed.
        for writer in connections.values():
            writer.transport.abort()
        await asyncio.gather(*connections)


def _connections(port: int) -> list[str]:
    """Return the established connections of this process to a local port."""
    sockets = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor))
    # Fields of a line: local and remote address in hexadecimal digits, state (01 is established), ..., inode.
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/self/net", table).read_text().splitlines()
    ]
    return [
        line[1]
        for line in lines[1:]
        if line[2].endswith(f":{port:04X}") and line[3] == "01" and f"socket:[{line[9]}]" in sockets
    ]
