"""The chart's etcd grows from one member to three: its script and settings, with a real etcd and its certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace
from kplane.data import Client, Credentials, digest
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving

pytestmark = pytest.mark.integration

RELEASE = "grown"
ETCD = f"{RELEASE}-kplane-etcd"
FREE = '{"metadata":{"finalizers":null}}'
GROW = ("--set=etcd.replicas=3", "--set=etcd.backup.accessMode=ReadWriteOnce")


@dataclass
class Member:
    """Pod of the StatefulSet, as processes of this machine."""

    name: str
    volume: Path
    ports: dict[str, int]
    process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Site:
    """Members of etcd, and their StatefulSets for one replica (`alone`) and for three (`grown`)."""

    programs: Path
    directory: Path
    alone: dict[str, Any]
    grown: dict[str, Any]
    settings: dict[str, str]
    """Content of the ConfigMap."""
    members: list[Member]
    eventually: Any
    authority: KeyPair = field(default_factory=lambda: create_authority("etcd"))

    def __post_init__(self) -> None:
        self.certificates = self.directory / "certificates"
        self.certificates.mkdir()
        server = issue_serving(self.authority, common_name="root", hosts=["127.0.0.1"], client=True)
        self._write("server", server)
        self._write("client", issue_client(self.authority, user="root"))
        (self.certificates / "ca.crt").write_bytes(self.authority.certificate)
        scripts = self.directory / "join"
        scripts.mkdir()
        for name, content in self.settings.items():
            (scripts / name).write_text(content)

    def _write(self, name: str, pair: KeyPair) -> None:
        for ending, content in (("crt", pair.certificate), ("key", pair.key)):
            path = self.certificates / f"{name}.{ending}"
            path.touch(mode=0o600)
            path.write_bytes(content)

    def here(self, text: str, member: Member) -> str:
        """Replace paths and addresses of pods by paths and addresses of this machine."""
        for peer in self.members:
            host = f"{peer.name}.{ETCD}-peers.kplane-system.svc"
            for port, number in (("client", 2379), ("peer", 2380)):
                text = text.replace(f"{host}:{number}", f"127.0.0.1:{peer.ports[port]}")
        for port, number in (("client", 2379), ("peer", 2380), ("metrics", 2381)):
            text = text.replace(f"0.0.0.0:{number}", f"127.0.0.1:{member.ports[port]}")
        places = {
            "/var/lib/etcd": member.volume,
            "/etc/etcd": self.certificates,
            "/etc/join": self.directory / "join" / member.name,
            "/run/etcd": member.volume / "run",
            "/tmp/": f"{member.volume}/run/",
        }
        # A single pass: a path of this machine may begin like a path of a pod.
        return re.sub("|".join(places), lambda found: str(places[found[0]]), text)

    def start_alone(self, member: Member) -> None:
        """Start a member as the chart does with a single replica."""
        [container] = self.alone["spec"]["template"]["spec"]["containers"]
        arguments = [self.here(argument.replace("$(POD_NAME)", member.name), member) for argument in container["args"]]
        member.process = subprocess.Popen([str(self.programs / "etcd"), *arguments, "--unsafe-no-fsync"])

    def join(self, member: Member) -> subprocess.Popen[str]:
        """Run the init container."""
        [container] = self.grown["spec"]["template"]["spec"]["initContainers"]
        scripts = self.directory / "join" / member.name
        scripts.mkdir(exist_ok=True)
        (member.volume / "run").mkdir(exist_ok=True)
        for name, content in self.settings.items():
            (scripts / name).write_text(self.here(content.replace("$(MEMBER).", f"{member.name}."), member))
        environment = {"MEMBER": member.name}
        for entry in container["env"]:
            if "value" in entry:
                environment[entry["name"]] = self.here(entry["value"].replace("$(MEMBER)", member.name), member)
        return subprocess.Popen(
            [self.here(argument, member) for argument in container["command"]],
            env={"PATH": f"{self.programs}:{os.environ['PATH']}", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def start(self, member: Member) -> str:
        """Start a pod of an etcd that has grown. Return the output of the join script."""
        joining = self.join(member)
        output, errors = await asyncio.to_thread(joining.communicate, timeout=120)
        assert joining.returncode == 0, errors
        self.start_grown(member)
        return output

    def start_grown(self, member: Member) -> None:
        [container] = self.grown["spec"]["template"]["spec"]["containers"]
        arguments = [self.here(argument, member) for argument in container["args"]]
        member.process = subprocess.Popen([str(self.programs / "etcd"), *arguments])

    def url(self, member: Member) -> str:
        return f"https://127.0.0.1:{member.ports['client']}"

    @contextlib.asynccontextmanager
    async def client(self, member: Member) -> AsyncIterator[Client]:
        async with Client(self.url(member), credentials=Credentials.in_directory(self.certificates)) as client:
            yield client

    async def follower(self, *, besides: Member) -> Member:
        """Return a member that is not the leader, if possible. The leader cannot promote with authentication on."""
        running = [
            candidate for candidate in self.members if candidate.process is not None and candidate is not besides
        ]

        async def led_by() -> str:
            async with self.client(running[0]) as client:
                leader = await client.members.leader()
                return next(candidate.client_url for candidate in await client.members.list() if candidate.id == leader)

        leader = await self.eventually(led_by)
        return next((candidate for candidate in running if self.url(candidate) != leader), running[0])

    async def grow(self, member: Member, *, to: int) -> str:
        """Start a pod, and promote learners as the operator does, until all members vote."""
        output = await self.start(member)
        follower = await self.follower(besides=member)

        async def votes() -> list[bool]:
            keyspace = Keyspace(self.url(follower), credentials=self.certificates)
            try:
                await keyspace.promote_learners()
            finally:
                await keyspace.close()
            async with self.client(follower) as client:
                return [not peer.learner for peer in await client.members.list()]

        await self.eventually(votes, lambda found: found == [True] * to, timeout=60.0)
        # A member may vote before it serves clients. A StatefulSet waits until it serves.
        await self.eventually(lambda: self.digest_of(member))
        return output

    async def digests(self) -> set[Any]:
        return {await self.digest_of(member) for member in self.members}

    async def digest_of(self, member: Member) -> Any:
        async with self.client(member) as client:
            return await digest(client, "/clusters/")

    async def opens_peer_port(self, member: Member, pair: KeyPair) -> bool:
        file = self.directory / "pair.pem"
        file.write_bytes(pair.certificate + pair.key)
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        context.load_cert_chain(file)
        url = f"https://127.0.0.1:{member.ports['peer']}/members"
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(url, ssl=context) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False


@pytest.fixture
async def rendered(chart: Any, api_server: Handle) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Render the StatefulSet of a single member, and all manifests of three members beside the claim of the first."""
    alone = chart.render(release=RELEASE).one("StatefulSet", ETCD)
    (template,) = alone["spec"]["volumeClaimTemplates"]
    metadata = {**template["metadata"], "name": f"data-{ETCD}-0", "namespace": chart.namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]}
    kube: Kubectl = api_server.kubectl
    await kube.apply(json.dumps(claim))
    flags = ["--dry-run=server", f"--kubeconfig={api_server.admin_kubeconfig}", "--set=crds.enabled=false", *GROW]
    try:
        printed = chart.helm("install", RELEASE, str(chart.directory), f"--namespace={chart.namespace}", *flags)
    finally:
        await kube.run("delete", "pvc", metadata["name"], "-n", chart.namespace, "--wait=false")
        await kube.run("patch", "pvc", metadata["name"], "-n", chart.namespace, "--type=merge", "-p", FREE)
    manifests = printed.partition("MANIFEST:\n")[2].partition("\nNOTES:\n")[0]
    return alone, [manifest for manifest in yaml.safe_load_all(manifests) if manifest]


@pytest.fixture
async def site(
    binaries: Any,
    rendered: tuple[dict[str, Any], list[dict[str, Any]]],
    tmp_path: Path,
    hold_port: Callable[[], int],
    eventually: Any,
) -> AsyncIterator[Site]:
    alone, manifests = rendered
    [grown] = [
        manifest for manifest in manifests if manifest["kind"] == "StatefulSet" and manifest["metadata"]["name"] == ETCD
    ]
    [settings] = [manifest for manifest in manifests if manifest["metadata"]["name"] == f"{ETCD}-join"]
    members = []
    for number in range(3):
        volume = tmp_path / f"volume-{number}"
        volume.mkdir()
        ports = {port: hold_port() for port in ("client", "peer", "metrics")}
        members.append(Member(f"{ETCD}-{number}", volume, ports))
    result = Site(binaries.etcd, tmp_path, alone, grown, settings["data"], members, eventually)
    try:
        yield result
    finally:
        for member in members:
            member.stop()


@pytest.mark.slow
async def test_etcd_grows_to_three_members_and_replaces_lost_ones(site: Site, api_server: Handle) -> None:
    first, second, third = site.members
    grown = site.directory / "grown.json"
    grown.write_text(json.dumps(site.grown))
    await api_server.kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", str(grown))
    assert site.grown["spec"]["replicas"] == 3
    # Kubernetes refuses a change of this field.
    assert site.grown["spec"]["volumeClaimTemplates"] == site.alone["spec"]["volumeClaimTemplates"]
    site.start_alone(first)
    keyspace = Keyspace(site.url(first), credentials=site.certificates)
    await site.eventually(keyspace.ensure_authentication, timeout=60.0, accept=lambda _: True)
    await keyspace.close()
    async with site.client(first) as client:
        for number in range(100):
            await client.put(f"/clusters/acme/{number}".encode(), b"value")

    # The StatefulSet starts with the highest number. It replaces the first pod after the others are ready.
    await site.grow(third, to=2)
    await site.grow(second, to=3)
    first.stop()
    await site.grow(first, to=3)
    [content] = await site.digests()
    assert content.count == 100

    tenant = issue_client(site.authority, user="cp-acme")
    root = KeyPair(*((site.certificates / f"client.{ending}").read_bytes() for ending in ("crt", "key")))
    for member in site.members:
        assert await site.opens_peer_port(member, root)
        assert not await site.opens_peer_port(member, tenant)

    # Any member may lose its volume, including the first.
    for member in (first, third):
        member.stop()
        shutil.rmtree(member.volume / "data")
        assert "has lost its data: it is removed, and joins anew" in await site.grow(member, to=3)
        [content] = await site.digests()
        assert content.count == 100


@pytest.mark.slow
async def test_member_without_data_waits_instead_of_starting_an_etcd(site: Site) -> None:
    """The first member has lost its volume, and the other members do not respond."""
    first = site.members[0]
    joining = site.join(first)
    try:
        assert joining.stderr is not None
        assert "no member of etcd answers" in await asyncio.to_thread(joining.stderr.readline)
        assert joining.poll() is None
        assert not (first.volume / "run" / "etcd.yaml").exists()
    finally:
        joining.kill()
        joining.communicate()
