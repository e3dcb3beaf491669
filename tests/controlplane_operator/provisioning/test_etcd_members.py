"""A dedicated etcd of real processes: growth from one member to three, crashes at every step, lost data."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.components.etcd import client_url, etcd_component, peer_url
from kplane.components.names import etcd_name
from kplane.controlplane_operator.backends import members as backend
from kplane.controlplane_operator.backends.members import (
    DedicatedEtcd,
    EtcdKeys,
    EtcdMembers,
    EtcdWithoutData,
    Founding,
)
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import Client, DataError, HeldCredentials, Members, digest
from kplane.embedded.components import bound
from kplane.pki.primitives import create_authority, issue_client, issue_serving
from kplane.workloads import Component, Phase, ProcessRuntime, run_program

if TYPE_CHECKING:
    from kplane.binaries.programs import Binaries

pytestmark = pytest.mark.integration

NAMES = tuple(etcd_name("acme", number) for number in range(3))
SPEC = {"metadata": {"name": "acme", "uid": "1"}, "spec": {"mode": "Dedicated"}}
PUBLISHED = ControlPlane.model_validate({**SPEC, "status": {"endpoint": "https://acme"}})
FIRST = Founding()


class Crash(Exception):
    """Crash of the operator."""


@dataclass
class Tenant:
    """The etcd of a control plane, and an operator of this etcd that may crash at any time."""

    runtime: ProcessRuntime
    directory: Path
    eventually: Any
    authority: Any = field(default_factory=lambda: create_authority("etcd"))

    def __post_init__(self) -> None:
        server = issue_serving(self.authority, common_name="etcd", hosts=["127.0.0.1"], client=True)
        client = issue_client(self.authority, user="kube-apiserver")
        self.keys = EtcdKeys(self.authority.certificate, server, client)

    async def ensure(
        self, asked: int, *, control_plane: ControlPlane = PUBLISHED, founding: Founding | None = FIRST
    ) -> EtcdMembers:
        """Reconcile once with an operator that has just started."""
        etcd = DedicatedEtcd(self.runtime, quota_bytes=1 << 30)
        size = etcd.wanted(control_plane, asked=asked)
        addresses = await etcd.reserve(control_plane, wanted=size)
        members = await etcd.ensure(control_plane, addresses=addresses, wanted=size, keys=self.keys, founding=founding)
        if founding is None or founding.begins_at is not None:
            return members
        if await etcd.confirm(control_plane, founding=founding):
            raise ConditionError(Reason.PROVISIONING, "etcd restarts")
        return members

    async def becomes(
        self, asked: int, *, control_plane: ControlPlane = PUBLISHED, founding: Founding | None = FIRST
    ) -> EtcdMembers:
        """Reconcile until the members are settled and have no lag."""

        async def look() -> EtcdMembers | str:
            try:
                members = await self.ensure(asked, control_plane=control_plane, founding=founding)
            except (ConditionError, Crash) as error:
                return repr(error)
            return members if members.settled and members.lag is None else repr(members)

        result: EtcdMembers = await self.eventually(look, lambda found: isinstance(found, EtcdMembers), timeout=120.0)
        return result

    @contextlib.asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        address = await self.runtime.reserve(name, ports=())
        pair = self.keys.client
        credentials = HeldCredentials(ca=self.keys.ca, certificate=pair.certificate, key=pair.key)
        async with Client(client_url(address), credentials=credentials, timeout_seconds=5.0) as client:
            yield client

    async def put(self, key: str, value: str, *, at: str = NAMES[0]) -> None:
        async with self.client(at) as client:
            await client.put(f"/registry/{key}".encode(), value.encode())

    async def digests(self) -> set[Any]:
        """Return the distinct digests of the members' data: a single digest if all members agree."""
        contents = set()
        for name in NAMES:
            async with self.client(name) as client:
                contents.add(await digest(client, "/registry/"))
        return contents

    async def votes(self) -> list[bool]:
        async with self.client(NAMES[0]) as client:
            return [not member.learner for member in await client.members.list()]

    async def lose_data(self, name: str) -> None:
        """Stop a member and delete its data directory."""
        await self.runtime.stop(name)
        shutil.rmtree(self.directory / name / "data")


@pytest.fixture
async def tenant(
    binaries: Binaries, tmp_path: Path, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tenant]:
    def quick(*arguments: Any, **options: Any) -> Component:
        component = bound(etcd_component(*arguments, **options), args=("--unsafe-no-fsync",))
        # A stopping leader spends seconds on the transfer of its leadership.
        return dataclasses.replace(component, grace_seconds=0.1)

    monkeypatch.setattr(backend, "etcd_component", quick)
    directory = tmp_path / "runtime"
    async with ProcessRuntime(directory, programs=binaries.directories) as runtime:
        try:
            yield Tenant(runtime, directory, eventually)
        finally:
            await asyncio.gather(*(runtime.delete(name) for name in runtime.names()))


@pytest.mark.slow
async def test_etcd_grows_from_one_to_three_members_under_writes(tenant: Tenant) -> None:
    assert len((await tenant.becomes(1)).voters) == 1
    written: list[int] = []
    refused: list[DataError] = []

    async def write() -> None:
        async with tenant.client(NAMES[0]) as client:
            number = 0
            while True:
                number += 1
                try:
                    await client.put(f"/registry/{number}".encode(), str(number).encode())
                except DataError as error:
                    refused.append(error)
                else:
                    written.append(number)

    writer = asyncio.create_task(write())
    grown = await tenant.becomes(3)
    writer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writer
    assert len(grown.voters) == 3
    assert await tenant.votes() == [True] * 3
    assert written
    # Each member was replaced once. The writer is connected to the first member. Refused writes were not acknowledged.
    async with tenant.client(NAMES[2]) as client:
        keys = [item.key async for page in client.pages("/registry/") for item in page.items]
    assert {f"/registry/{number}".encode() for number in written} <= set(keys)
    [(count, _)] = [(content.count, content) for content in await tenant.digests()]
    assert count >= len(written)

    # Any single member may stop.
    for name in NAMES:
        await tenant.runtime.stop(name)
        other = next(candidate for candidate in NAMES if candidate != name)
        # Without its leader, etcd elects another leader first.
        await tenant.eventually(
            lambda name=name, other=other: tenant.put("after", name, at=other), lambda _: True, timeout=60.0
        )
        members = await tenant.ensure(3)
        assert members.lag is not None
        assert members.lag.reason is Reason.ETCD_INCOMPLETE
        assert name in members.lag.message
        assert len(members.voters) == 3
        await tenant.becomes(3)
    assert len(await tenant.digests()) == 1


@pytest.mark.slow
async def test_new_control_plane_starts_with_three_members_and_keeps_them(tenant: Tenant) -> None:
    new = ControlPlane.model_validate(SPEC)
    with pytest.raises(ConditionError) as caught:
        await tenant.ensure(3, control_plane=new)
    assert caught.value.reason is Reason.PROVISIONING
    assert len((await tenant.becomes(3, control_plane=new)).voters) == 3

    # A lower desired number removes no member.
    assert DedicatedEtcd(tenant.runtime, quota_bytes=1 << 30).wanted(PUBLISHED, asked=1) == 3
    assert len((await tenant.becomes(1)).voters) == 3


@pytest.mark.slow
async def test_operator_resumes_growth_after_crash_at_any_step(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator crashes once after each call that changes state, for each member."""
    crashed: list[str] = []

    def crashing(patched: pytest.MonkeyPatch, owner: type, method: str) -> None:
        original = getattr(owner, method)

        async def call(self: Any, subject: Any, *arguments: Any, **options: Any) -> Any:
            answer = await original(self, subject, *arguments, **options)
            step = f"{method} {getattr(subject, 'name', subject)} {' '.join(map(str, arguments))}"
            if step not in crashed:
                crashed.append(step)
                raise Crash(step)
            return answer

        patched.setattr(owner, method, call)

    await tenant.becomes(1)
    await tenant.put("key", "value")
    with monkeypatch.context() as patched:
        for method in ("reserve", "apply", "mark_data", "delete"):
            crashing(patched, ProcessRuntime, method)
        for method in ("add_learner", "promote", "remove"):
            crashing(patched, Members, method)
        assert len((await tenant.becomes(3)).voters) == 3
        assert len(await tenant.digests()) == 1
        growth_steps = list(crashed)
        steps = {"reserve", "delete", "add_learner", "apply", "mark_data", "promote"}
        assert {step.split()[0] for step in growth_steps} == steps

        await tenant.lose_data(NAMES[1])
        assert len((await tenant.becomes(3)).voters) == 3
        [content] = await tenant.digests()
        assert content.count == 1
        assert {step.split()[0] for step in crashed[len(growth_steps) :]} >= {"remove", "promote"}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 2])
async def test_member_with_lost_data_recovers_them_from_others(tenant: Tenant, lost: int) -> None:
    await tenant.becomes(3)
    await tenant.put("key", "value")
    await tenant.lose_data(NAMES[lost])
    # Its description keeps the member from starting as a new etcd without data.
    with contextlib.suppress(ConditionError):
        await tenant.ensure(3)
    members = await tenant.becomes(3)
    assert len(members.voters) == 3
    assert await tenant.votes() == [True] * 3
    [content] = await tenant.digests()
    assert content.count == 1


@pytest.mark.slow
async def test_member_without_its_data_does_not_start(tenant: Tenant) -> None:
    """Also if the kubelet or the supervisor restarts the member with its former description."""
    await tenant.becomes(3)
    await tenant.put("key", "value")
    for name in NAMES[:2]:
        shutil.rmtree(tenant.directory / name / "data")
        pid = tenant.runtime.state(name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    for name in NAMES[:2]:
        await tenant.eventually(
            lambda name=name: tenant.runtime.state(name), lambda state: state.phase is Phase.BACKOFF, timeout=60.0
        )
    with pytest.raises(ConditionError) as caught:
        await tenant.ensure(3)
    assert caught.value.reason is Reason.API_SERVER_NOT_READY
    assert "waiting for a majority of the members of etcd" in caught.value.message


@pytest.mark.slow
async def test_only_member_begins_anew_only_after_an_accepted_loss(tenant: Tenant) -> None:
    new, [name] = ControlPlane.model_validate(SPEC), NAMES[:1]
    await tenant.becomes(1, control_plane=new)
    pid = tenant.runtime.state(name).pid
    await tenant.becomes(1, founding=None)
    await tenant.put("key", "value")
    assert pid is not None
    assert tenant.runtime.state(name).pid == pid

    shutil.rmtree(tenant.directory / name / "data")
    os.kill(pid, signal.SIGKILL)

    async def problem() -> str:
        try:
            await tenant.ensure(1, founding=None)
        except ConditionError as error:
            return f"{type(error).__name__}: {error}"
        return "begun"

    told = await tenant.eventually(problem, lambda found: found.startswith(EtcdWithoutData.__name__), timeout=60.0)
    assert told == f"EtcdWithoutData: {name} has no data"
    # An operator that starts anew does not take the member for one that an earlier version made.
    assert not (await problem()).startswith("begun")

    accepted = Founding(after="loss")
    await tenant.becomes(1, founding=accepted)
    assert await tenant.runtime.data_mark(name) == "alone-loss"
    pid = tenant.runtime.state(name).pid
    await tenant.becomes(1, founding=None)
    assert tenant.runtime.state(name).pid == pid
    async with tenant.client(name) as client:
        assert await client.count("/registry/") == 0


@pytest.mark.slow
async def test_member_of_an_earlier_version_is_not_restarted_while_it_runs(tenant: Tenant) -> None:
    name = NAMES[0]
    await tenant.becomes(1, founding=Founding(begins_at=1000))
    assert await tenant.runtime.data_mark(name) is None
    await tenant.becomes(1, founding=None)
    pid = tenant.runtime.state(name).pid
    await tenant.becomes(1, founding=None)
    assert tenant.runtime.state(name).pid == pid
    assert await tenant.runtime.data_mark(name) is None
    await tenant.put("key", "value")
    await tenant.runtime.stop(name)
    # A member that does not run is restarted anyway, and does not begin anew from then on.
    await tenant.becomes(1, founding=None)
    assert await tenant.runtime.data_mark(name) == "alone"
    async with tenant.client(name) as client:
        assert await client.count("/registry/") == 1


@pytest.mark.slow
async def test_stopped_members_start_again_with_their_data(tenant: Tenant) -> None:
    await tenant.becomes(3)
    await tenant.put("key", "value")
    for name in NAMES:
        await tenant.runtime.stop(name)
    assert len((await tenant.becomes(3)).voters) == 3
    [content] = await tenant.digests()
    assert content.count == 1


@pytest.mark.slow
async def test_restored_backup_replaces_data_of_all_members(tenant: Tenant, binaries: Binaries, tmp_path: Path) -> None:
    """Follows docs/how-to/dedicated-backup.md: the first member starts from the backup, and the others join it anew."""
    await tenant.becomes(3)
    await tenant.put("key", "saved")
    snapshot, restored = tmp_path / "backup.db", tmp_path / "restored"
    files, address = tenant.directory / NAMES[0] / "files", await tenant.runtime.reserve(NAMES[0], ports=())
    tls = (f"--cacert={files}/ca.crt", f"--cert={files}/server.crt", f"--key={files}/server.key")
    await run_program(
        binaries.path("etcdctl"),
        [f"--endpoints={client_url(address)}", *tls, "snapshot", "save", str(snapshot)],
        timeout_seconds=60.0,
    )
    await tenant.put("key", "later")
    async with tenant.client(NAMES[0]) as client:
        before = await client.put(b"/registry/other", b"later")
    for name in NAMES:
        await tenant.runtime.stop(name)
        if name != NAMES[0]:
            (tenant.directory / name / "data" / ".mark").unlink()
    arguments = (
        f"--data-dir={restored}",
        "--name=member",
        f"--initial-cluster=member={peer_url(address)}",
        f"--initial-advertise-peer-urls={peer_url(address)}",
        "--bump-revision=1000000000",
        "--mark-compacted",
    )
    await run_program(
        binaries.path("etcdutl"), ["snapshot", "restore", str(snapshot), *arguments], timeout_seconds=60.0
    )
    data = tenant.directory / NAMES[0] / "data"
    shutil.copy(data / ".mark", restored)
    shutil.rmtree(data)
    restored.rename(data)

    assert len((await tenant.becomes(3)).voters) == 3
    [content] = await tenant.digests()
    assert content.count == 1
    for name in NAMES:
        async with tenant.client(name) as client:
            item = await client.get(b"/registry/key")
            assert item is not None
            assert item.value == b"saved"
            # Watches from before the restore fail as too old, and so miss no event.
            assert item.revision < before
            [page] = [page async for page in client.pages("/registry/")]
            assert page.revision > before


async def test_peer_port_accepts_member_certificates_only(tenant: Tenant) -> None:
    """The client certificate of the API server is from the same CA, and is refused at the peer port."""
    await tenant.becomes(1)
    address = await tenant.runtime.reserve(NAMES[0], ports=())
    server, client = tenant.keys.server, tenant.keys.client
    for pair, opened in ((server, True), (client, False)):
        assert await answers(tenant, address.ports["peer"], pair) is opened


async def answers(tenant: Tenant, port: int, pair: Any) -> bool:
    file = tenant.directory.parent / "pair.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=tenant.keys.ca.decode())
    context.load_cert_chain(file)
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"https://127.0.0.1:{port}/members", ssl=context) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False
