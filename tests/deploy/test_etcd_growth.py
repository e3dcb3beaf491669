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
    """A pod of the StatefulSet as processes of this machine."""

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
    """The members, and what the chart says of them: alone, and grown."""

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
        """Put places and addresses of this machine for those of pods."""
        for each in self.members:
            host = f"{each.name}.{ETCD}-peers.kplane-system.svc"
            for port, number in (("client", 2379), ("peer", 2380)):
                text = text.replace(f"{host}:{number}", f"127.0.0.1:{each.ports[port]}")
        for port, number in (("client", 2379), ("peer", 2380), ("metrics", 2381)):
            text = text.replace(f"0.0.0.0:{number}", f"127.0.0.1:{member.ports[port]}")
        places = {
            "/var/lib/etcd": member.volume,
            "/etc/etcd": self.certificates,
            "/etc/join": self.directory / "join" / member.name,
            "/run/etcd": member.volume / "run",
            "/tmp/": f"{member.volume}/run/",
        }
        # At once: a place of this machine may begin like one of pods.
        return re.sub("|".join(places), lambda found: str(places[found[0]]), text)

    def start_alone(self, member: Member) -> None:
        """Start it as the chart does with one member."""
        [container] = self.alone["spec"]["template"]["spec"]["containers"]
        arguments = [self.here(each.replace("$(POD_NAME)", member.name), member) for each in container["args"]]
        member.process = subprocess.Popen([str(self.programs / "etcd"), *arguments, "--unsafe-no-fsync"])

    def join(self, member: Member) -> subprocess.Popen[str]:
        """Run the container before etcd's."""
        [container] = self.grown["spec"]["template"]["spec"]["initContainers"]
        scripts = self.directory / "join" / member.name
        scripts.mkdir(exist_ok=True)
        (member.volume / "run").mkdir(exist_ok=True)
        for name, content in self.settings.items():
            (scripts / name).write_text(self.here(content.replace("$(MEMBER).", f"{member.name}."), member))
        given = {"MEMBER": member.name}
        for entry in container["env"]:
            if "value" in entry:
                given[entry["name"]] = self.here(entry["value"].replace("$(MEMBER)", member.name), member)
        return subprocess.Popen(
            [self.here(each, member) for each in container["command"]],
            env={"PATH": f"{self.programs}:{os.environ['PATH']}", **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def start(self, member: Member) -> str:
        """Start a pod of an etcd that has grown; returns what its script says."""
        joining = self.join(member)
        said, wrong = await asyncio.to_thread(joining.communicate, timeout=120)
        assert joining.returncode == 0, wrong
        self.start_grown(member)
        return said

    def start_grown(self, member: Member) -> None:
        [container] = self.grown["spec"]["template"]["spec"]["containers"]
        arguments = [self.here(each, member) for each in container["args"]]
        member.process = subprocess.Popen([str(self.programs / "etcd"), *arguments])

    def url(self, member: Member) -> str:
        return f"https://127.0.0.1:{member.ports['client']}"

    @contextlib.asynccontextmanager
    async def client(self, member: Member) -> AsyncIterator[Client]:
        async with Client(self.url(member), credentials=Credentials.in_directory(self.certificates)) as client:
            yield client

    async def follower(self, *, besides: Member) -> Member:
        """Return a member that is not the leader, if there is one: it cannot promote where access control is on."""
        running = [each for each in self.members if each.process is not None and each is not besides]

        async def led_by() -> str:
            async with self.client(running[0]) as client:
                leader = await client.members.leader()
                return next(each.client_url for each in await client.members.list() if each.id == leader)

        leader = await self.eventually(led_by)
        return next((each for each in running if self.url(each) != leader), running[0])

    async def grow(self, member: Member, *, to: int) -> str:
        """Start a pod, and do what the operator does until all members have a vote."""
        said = await self.start(member)
        other = await self.follower(besides=member)

        async def votes() -> list[bool]:
            keyspace = Keyspace(self.url(other), credentials=self.certificates)
            try:
                await keyspace.promote_learners()
            finally:
                await keyspace.close()
            async with self.client(other) as client:
                return [not found.learner for found in await client.members.list()]

        await self.eventually(votes, lambda found: found == [True] * to, timeout=60.0)
        # A StatefulSet waits for that too. A member may have a vote before it serves clients.
        await self.eventually(lambda: self.digest_of(member))
        return said

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
    """The StatefulSet of one member, and what the chart makes of its number where the claim of that member is."""
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
    return alone, [each for each in yaml.safe_load_all(manifests) if each]


@pytest.fixture
async def site(
    binaries: Any,
    rendered: tuple[dict[str, Any], list[dict[str, Any]]],
    tmp_path: Path,
    hold_port: Callable[[], int],
    eventually: Any,
) -> AsyncIterator[Site]:
    alone, manifests = rendered
    [grown] = [each for each in manifests if each["kind"] == "StatefulSet" and each["metadata"]["name"] == ETCD]
    [settings] = [each for each in manifests if each["metadata"]["name"] == f"{ETCD}-join"]
    members = []
    for number in range(3):
        volume = tmp_path / f"volume-{number}"
        volume.mkdir()
        ports = {port: hold_port() for port in ("client", "peer", "metrics")}
        members.append(Member(f"{ETCD}-{number}", volume, ports))
    made = Site(binaries.etcd, tmp_path, alone, grown, settings["data"], members, eventually)
    try:
        yield made
    finally:
        for member in members:
            member.stop()


@pytest.mark.slow
async def test_one_member_becomes_three(site: Site, api_server: Handle) -> None:
    first, second, third = site.members
    grown = site.directory / "grown.json"
    grown.write_text(json.dumps(site.grown))
    await api_server.kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", str(grown))
    assert site.grown["spec"]["replicas"] == 3
    # Kubernetes lets nobody change it: what Helm would send is refused otherwise.
    assert site.grown["spec"]["volumeClaimTemplates"] == site.alone["spec"]["volumeClaimTemplates"]
    site.start_alone(first)
    keyspace = Keyspace(site.url(first), credentials=site.certificates)
    await site.eventually(keyspace.ensure_authentication, timeout=60.0, accept=lambda _: True)
    await keyspace.close()
    async with site.client(first) as client:
        for number in range(100):
            await client.put(f"/clusters/acme/{number}".encode(), b"value")

    # The pods of the highest numbers come first, and the first one is replaced when they are ready.
    await site.grow(third, to=2)
    await site.grow(second, to=3)
    first.stop()
    await site.grow(first, to=3)
    [found] = await site.digests()
    assert found.count == 100

    tenant = issue_client(site.authority, user="cp-acme")
    root = KeyPair(*((site.certificates / f"client.{ending}").read_bytes() for ending in ("crt", "key")))
    for member in site.members:
        assert await site.opens_peer_port(member, root)
        assert not await site.opens_peer_port(member, tenant)

    # Any of them may lose its volume, the one that they began with too.
    for member in (first, third):
        member.stop()
        shutil.rmtree(member.volume / "data")
        assert "has lost its data: it is removed, and joins anew" in await site.grow(member, to=3)
        [found] = await site.digests()
        assert found.count == 100


@pytest.mark.slow
async def test_no_member_begins_an_etcd_of_its_own(site: Site) -> None:
    """The first one has lost its volume, and none of the others answers."""
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
