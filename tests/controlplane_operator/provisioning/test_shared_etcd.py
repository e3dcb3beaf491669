"""Tenants on one etcd: each has its keys and cannot reach another's."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.workloads import ProgramFailed, run_program

pytestmark = pytest.mark.integration


async def _as_user(shared: Any, user: str, directory: Path, *args: str) -> Any:
    access = shared.access(user)
    directory.mkdir(exist_ok=True)
    for name, content in (
        ("ca.crt", access.ca),
        ("client.crt", access.client.certificate),
        ("client.key", access.client.key),
    ):
        (directory / name).write_bytes(content)
    connection = (
        f"--endpoints={shared.url}",
        f"--cacert={directory}/ca.crt",
        f"--cert={directory}/client.crt",
        f"--key={directory}/client.key",
    )
    answer = await run_program(shared.keyspace.etcdctl, [*connection, *args, "-w", "json"], timeout_seconds=60.0)
    return json.loads(answer)


def _alike(path: str) -> tuple[str, str, str]:
    """Three paths that begin alike."""
    return path, f"{path}x", f"{path}-b"


async def test_a_tenants_user_reaches_its_own_prefix_only(shared_etcd: Any, path: str, tmp_path: Path) -> None:
    for each in _alike(path):
        await shared_etcd.keyspace.grant(each, prefix=f"/clusters/{each}/")
        await _as_user(shared_etcd, each, tmp_path / each, "put", f"/clusters/{each}/key", each)

    _, longer, dashed = _alike(path)
    for foreign in (f"/clusters/{longer}/key", f"/clusters/{dashed}/key", f"/clusters/{path}", "/registry/x", "/"):
        with pytest.raises(ProgramFailed, match="permission denied"):
            await _as_user(shared_etcd, path, tmp_path / path, "get", foreign)
        with pytest.raises(ProgramFailed, match="permission denied"):
            await _as_user(shared_etcd, path, tmp_path / path, "put", foreign, "x")
    with pytest.raises(ProgramFailed, match="permission denied"):
        await _as_user(shared_etcd, path, tmp_path / path, "del", "", "--prefix")


async def test_destroy_takes_one_prefix_and_leaves_its_neighbours_byte_by_byte(
    shared_etcd: Any, path: str, tmp_path: Path
) -> None:
    keyspace = shared_etcd.keyspace
    for each in _alike(path):
        await keyspace.grant(each, prefix=f"/clusters/{each}/")
        for number in range(5):
            await _as_user(shared_etcd, each, tmp_path / each, "put", f"/clusters/{each}/k{number}", each)
    neighbours = _alike(path)[1:]
    others = [
        (await _as_user(shared_etcd, each, tmp_path / each, "get", f"/clusters/{each}/", "--prefix"))["kvs"]
        for each in neighbours
    ]

    assert await keyspace.delete_prefix(f"/clusters/{path}/") == 5
    assert await keyspace.count(f"/clusters/{path}/") == 0
    assert await keyspace.delete_prefix(f"/clusters/{path}/") == 0

    after = [
        (await _as_user(shared_etcd, each, tmp_path / each, "get", f"/clusters/{each}/", "--prefix"))["kvs"]
        for each in neighbours
    ]
    assert after == others
    assert {base64.b64decode(pair["key"]).decode().split("/")[2] for kvs in after for pair in kvs} == set(neighbours)


async def test_a_revoked_user_is_refused_and_may_be_granted_again(shared_etcd: Any, path: str, tmp_path: Path) -> None:
    keyspace, prefix = shared_etcd.keyspace, f"/clusters/{path}/"
    await keyspace.grant(path, prefix=prefix)
    await keyspace.grant(path, prefix=prefix)
    await _as_user(shared_etcd, path, tmp_path / path, "put", f"{prefix}key", "1")

    await keyspace.revoke(path)
    await keyspace.revoke(path)
    with pytest.raises(ProgramFailed):
        await _as_user(shared_etcd, path, tmp_path / path, "get", f"{prefix}key")

    await keyspace.grant(path, prefix=prefix)
    assert (await _as_user(shared_etcd, path, tmp_path / path, "get", f"{prefix}key"))["count"] == 1


async def test_a_grant_takes_back_whatever_else_the_user_was_allowed(
    shared_etcd: Any, path: str, tmp_path: Path
) -> None:
    keyspace, root, spy = shared_etcd.keyspace, tmp_path / "root-user", f"{path}-spy"
    await keyspace.grant(path, prefix=f"/clusters/{path}-old/")
    await _as_user(shared_etcd, "root", root, "role", "add", spy)
    await _as_user(shared_etcd, "root", root, "role", "grant-permission", spy, "read", "/secret")
    await _as_user(shared_etcd, "root", root, "user", "grant-role", path, spy)

    await keyspace.grant(path, prefix=f"/clusters/{path}/")

    await _as_user(shared_etcd, path, tmp_path / path, "put", f"/clusters/{path}/key", "1")
    for foreign in (f"/clusters/{path}-old/key", "/secret"):
        with pytest.raises(ProgramFailed, match="permission denied"):
            await _as_user(shared_etcd, path, tmp_path / path, "get", foreign)


@pytest.mark.parametrize("left", ["role", "user"])
async def test_a_grant_goes_on_where_it_was_cut_off(shared_etcd: Any, path: str, tmp_path: Path, left: str) -> None:
    flags = ["--no-password"] if left == "user" else []
    await _as_user(shared_etcd, "root", tmp_path / "root-user", left, "add", path, *flags)
    await shared_etcd.keyspace.grant(path, prefix=f"/clusters/{path}/")
    await _as_user(shared_etcd, path, tmp_path / path, "put", f"/clusters/{path}/key", "1")


async def test_an_etcd_that_never_answers_is_an_error_that_names_it(shared_etcd: Any) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = "https://{}:{}".format(*server.sockets[0].getsockname())
        keyspace = replace(shared_etcd.keyspace, endpoints=(url,), timeout_seconds=1.0)
        async with asyncio.timeout(60):
            with pytest.raises(KeyspaceError, match=url):
                await keyspace.count("/clusters/a/")
            assert not await keyspace.healthy()


async def test_what_etcd_says_is_told_without_its_log_lines(shared_etcd: Any) -> None:
    with pytest.raises(KeyspaceError) as caught:
        await shared_etcd.keyspace._run("role", "grant-permission", "nobody", "read", "/x")
    assert str(caught.value).endswith(f"at {shared_etcd.url}: etcdserver: role name not found")
