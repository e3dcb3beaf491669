"""mcm as a process, on a real management cluster, with real control planes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import itertools
import json
import os
import re
import signal
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane_operator.credentials import (
    CONTROLLERS_USER,
    KeyPair,
    create_authority,
    issue_client,
    issue_serving,
    render_kubeconfig,
)
from mcm.configuration import component_name
from mcm.digest import SERIES
from provider import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Client,
    ClusterConfig,
    Forbidden,
    NotFound,
    Reflector,
    Resource,
    Unauthorized,
)
from provider.providers.registration import REGISTRATIONS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm")]

Eventually = Callable[..., Any]
Fleet = Any

CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
NODES = Resource("v1", "Node", "nodes", namespaced=False)
JOBS = Resource("batch/v1", "Job", "jobs", namespaced=True)
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets", namespaced=True)
_DEADLINE_SECONDS = 40.0
_TOKEN_SECONDS = 52
"""client-go takes a token from its file again 50 s after it did so last (transport/token_source.go), and some slack."""


OWN_SERIES = {f"mcm_instance_{name}" for name in ("up", "restarts_total", "exits_total", "pss_bytes", "scrape_success")}


def samples(mcm: Any) -> dict[tuple[str, str], dict[str, float]]:
    """Values by name and cluster, and by the code or else the queue that they are of; each metric is described once."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    text = mcm.get("/metrics")[1]
    described = re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE)
    assert len(set(described)) == len(described)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            values = found.setdefault((sample.name, labels.get("cluster", "")), {})
            values[labels.get("code") or labels.get("name") or ""] = sample.value
    return found


def status_of(url: str, certificate: Path | None) -> int:
    """How a server answers to whoever has this certificate, and its key."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    try:
        with urllib.request.urlopen(url, timeout=5.0, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def manifest(api_version: str, kind: str, name: str, *, namespace: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def deployment(name: str, *, namespace: str) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "none"}]}}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": pod}
    return manifest("apps/v1", "Deployment", name, namespace=namespace, spec=spec)


def job(name: str, *, namespace: str) -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "none"}]}}
    return manifest("batch/v1", "Job", name, namespace=namespace, spec={"template": pod})


@pytest.fixture
async def one(tenants: Any) -> AsyncIterator[Client]:
    async with Client(tenants["one"].config) as client:
        yield client


@pytest.fixture
async def two(tenants: Any) -> AsyncIterator[Client]:
    async with Client(tenants["two"].config) as client:
        yield client


@pytest.fixture
def state(mcm: Any, eventually: Eventually) -> Callable[..., Awaitable[dict[str, Any]]]:
    """`await state(name, "Ready")`: wait for what mcm tells of a cluster, then give all of it."""

    async def wait(name: str, wanted: str, accept: Callable[[dict[str, Any]], Any] = bool) -> dict[str, Any]:
        def told() -> Any:
            return mcm.clusters().get(name, {})

        found: dict[str, Any] = await eventually(
            lambda: asyncio.to_thread(told),
            lambda found: found.get("state") == wanted and accept(found),
            timeout=_DEADLINE_SECONDS,
        )
        return found

    return wait


async def works(client: Client, eventually: Eventually) -> str:
    """Show that controllers work: a new namespace gets its ServiceAccount. Returns the namespace."""
    name = f"proof-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, manifest("v1", "Namespace", name))
    await eventually(lambda: client.get(SERVICE_ACCOUNTS, "default", namespace=name), timeout=_DEADLINE_SECONDS)
    return name


async def gone(client: Client, resource: Resource, name: str) -> bool:
    try:
        await client.get(resource, name)
    except NotFound:
        return True
    return False


@pytest.mark.timeout(180)
async def test_an_instance_gives_a_control_plane_what_kubernetes_promises(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    await state(name, "Ready")

    namespace = await works(one, eventually)
    root = await eventually(lambda: one.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=namespace))
    assert root["data"]["ca.crt"].encode() == tenants["one"].authorities.serving.certificate

    await one.create(DEPLOYMENTS, deployment("web", namespace=namespace))
    pods = await eventually(
        lambda: one.list(PODS, namespace=namespace), lambda found: len(found.items) == 3, timeout=_DEADLINE_SECONDS
    )
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods.items} == {"ReplicaSet"}

    admin = await eventually(lambda: one.get(CLUSTER_ROLES, "admin"), lambda role: role.get("rules"))
    assert any("deployments" in rule.get("resources", ()) for rule in admin["rules"])

    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await one.create(CLAIMS, manifest("v1", "PersistentVolumeClaim", "data", namespace=namespace, spec=claim))
    await one.delete(NAMESPACES, namespace)
    await eventually(lambda: gone(one, NAMESPACES, namespace), timeout=_DEADLINE_SECONDS)


@pytest.mark.timeout(180)
async def test_flags_of_its_command_line_are_acted_on_by_the_instance(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start("--controllers=*,-deployment-controller", "--concurrent-gc-syncs", "3")
    secret = tenants["one"].controllers_secret()
    name = await fleet.register("a", secret, server=tenants["one"].server, profile="")
    found = await state(name, "Ready")
    assert found["profile"] == "Explicit"
    command = Path(f"/proc/{found['pid']}/cmdline").read_text().split("\0")
    assert command[command.index("--concurrent-gc-syncs") + 1] == "3"

    namespace = await works(one, eventually)
    await one.create(DEPLOYMENTS, deployment("web", namespace=namespace))
    await one.create(JOBS, job("once", namespace=namespace))
    await eventually(lambda: one.list(PODS, namespace=namespace), lambda found: found.items, timeout=_DEADLINE_SECONDS)
    assert not (await one.list(REPLICA_SETS, namespace=namespace)).items
    await one.delete(NAMESPACES, namespace)


async def test_flags_that_kube_controller_manager_refuses_are_refused_at_the_start(mcm: Any) -> None:
    mcm.start("--nope")
    assert mcm.process.wait(30.0) == 1
    assert "kube-controller-manager refuses its flags: unknown flag: --nope" in mcm.log.read_text()


@pytest.mark.timeout(180)
async def test_a_scheduler_runs_beside_the_controllers_where_it_is_asked_for(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start("--scheduler-flag=--kube-api-qps=77")
    secret, server = tenants["one"].controllers_secret(), tenants["one"].server
    name = await fleet.register("a", secret, server=server, services=("Controllers", "Scheduler"))
    found = await state(name, "Ready")
    assert set(await asyncio.to_thread(mcm.instances)) == {found["pid"], found["others"]["kube-scheduler"]}
    await eventually(lambda: fleet.told("a"), lambda told: told == ("True", "InstanceRunning", fleet.uid_at(server)))

    scheduler = Path(f"/proc/{found['others']['kube-scheduler']}/cmdline").read_bytes().split(b"\0")
    assert b"--kube-api-qps=77" in scheduler

    namespace = await works(one, eventually)
    node = f"node-{namespace}"
    capacity = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    await one.create(NODES, manifest("v1", "Node", node, status={"capacity": capacity, "allocatable": capacity}))
    # The API server taints each new node, until a kubelet says that it is ready.
    pod = {"containers": [{"name": "a", "image": "none"}], "tolerations": [{"operator": "Exists"}]}
    await one.create(PODS, manifest("v1", "Pod", "a", namespace=namespace, spec=pod))
    bound = await eventually(
        lambda: one.get(PODS, "a", namespace=namespace), lambda pod: pod["spec"].get("nodeName"), timeout=20.0
    )
    assert bound["spec"]["nodeName"] == node
    _, metrics = await asyncio.to_thread(mcm.get, "/metrics")
    labels = f'cluster="{name}",program="kube-scheduler"'
    assert f"mcm_instance_scrape_success{{{labels}}} 1.0" in metrics
    assert f'scheduler_schedule_attempts_total{{{labels},result="scheduled"}} 1.0' in metrics
    assert f"process_open_fds{{{labels.replace('scheduler', 'controller-manager')}}}" in metrics

    await fleet.resolve("a", server=server, secret="a")
    await state(name, "Ready", lambda found: "others" not in found)
    assert len(await asyncio.to_thread(mcm.instances)) == 1
    await fleet.withdraw("a")
    await eventually(mcm.directories, lambda left: left == [], timeout=20.0)
    assert not await asyncio.to_thread(mcm.instances)
    await one.delete(NODES, node)
    await one.delete(NAMESPACES, namespace)


@pytest.mark.timeout(180)
async def test_a_switched_registration_has_one_instance_at_any_time(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, two: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    old = (await state(name, "Ready"))["pid"]
    await works(one, eventually)
    await fleet.put_secret("moved", tenants["two"].controllers_secret())

    seen: set[tuple[int, ...]] = set()

    async def look() -> None:
        while True:
            seen.add(tuple(await asyncio.to_thread(mcm.instances)))

    history: list[tuple[str, str, str]] = []
    registrations = Reflector(fleet.client, REGISTRATIONS)
    following = asyncio.create_task(registrations.run(lambda _, found: history.append(fleet.instance_in(found))))
    await eventually(
        lambda: history and history[-1] == ("True", "InstanceRunning", fleet.uid_at(tenants["one"].server))
    )
    looking = asyncio.create_task(look())
    await fleet.resolve("a", server=tenants["two"].server, secret="moved")
    found = await state(name, "Ready", lambda found: found["server"] == tenants["two"].server)
    looking.cancel()
    # Its end at the old one is confirmed before it is announced at the new one.
    there, here = fleet.uid_at(tenants["one"].server), fleet.uid_at(tenants["two"].server)
    await eventually(lambda: history[-1] == ("True", "InstanceRunning", here))
    following.cancel()
    moves = [told for told in history if told[1] in {"InstanceRunning", "Ended"} or told[2] == here]
    assert [told for told, _ in itertools.groupby(moves)] == [
        ("True", "InstanceRunning", there),
        ("False", "Ended", ""),
        ("False", "Starting", here),
        ("True", "InstanceRunning", here),
    ]

    assert found["pid"] != old
    assert {(old,), (found["pid"],)} <= seen
    assert max(len(pids) for pids in seen) == 1
    await works(two, eventually)
    # Nobody is left at the old one.
    lonely = f"lonely-{uuid.uuid4().hex[:8]}"
    await one.create(NAMESPACES, manifest("v1", "Namespace", lonely))
    await works(two, eventually)
    with pytest.raises(NotFound):
        await one.get(SERVICE_ACCOUNTS, "default", namespace=lonely)


@pytest.mark.timeout(180)
async def test_a_renewed_certificate_is_used_by_the_same_process(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """The first certificate expires while the instance runs, and every connection has to be made again."""
    tenant = tenants["one"]
    expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=12)
    short = issue_client(
        tenant.authorities.client,
        user=CONTROLLERS_USER,
        groups=("system:masters",),
        lifetime=dt.timedelta(seconds=12),
    )
    kubeconfig = render_kubeconfig(
        server=tenant.server, ca=tenant.authorities.serving.certificate, user=CONTROLLERS_USER, client=short
    )
    secret = tenant.controllers_secret()
    mcm.start()
    async with gate_to(tenant.server) as gate:
        name = await fleet.register("a", secret | {"kubeconfig": kubeconfig}, server=gate.url)
        pid = (await state(name, "Ready"))["pid"]
        await fleet.put_secret("a", secret)
        renewed = ClusterConfig.from_kubeconfig(secret["kubeconfig"]).client_certificate
        file = mcm.state / component_name(name) / "files" / "client.pem"
        await eventually(lambda: renewed.strip() in file.read_bytes())
        await eventually(lambda: dt.datetime.now(dt.UTC) > expires, timeout=20.0)
        gate.cut()
        await works(one, eventually)
        assert (await state(name, "Ready"))["pid"] == pid
        assert mcm.clusters()[name]["restarts"] == 0


@pytest.mark.timeout(240)
async def test_a_rotated_token_is_used_by_the_same_process(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """The first token is refused while the instance runs, and every connection has to be made again."""
    tenant, (former, latter) = tenants["one"], (fleet.name("former"), fleet.name("latter"))
    secret, ca = tenant.controllers_secret(), tenant.authorities.serving.certificate
    configs = {
        account: ClusterConfig(server=tenant.server, ca_data=ca, token=await controllers_token(one, account=account))
        for account in (former, latter)
    }

    def with_token_of(account: str) -> dict[str, bytes]:
        return secret | {"kubeconfig": json.dumps(configs[account].to_kubeconfig()).encode()}

    async def refused(client: Client) -> bool:
        try:
            await client.get(NAMESPACES, "default")
        except Unauthorized:
            return True
        return False

    mcm.start("--instance-metrics=full")
    async with gate_to(tenant.server) as gate, Client(configs[former]) as outdated:
        name = await fleet.register("a", with_token_of(former), server=gate.url)
        pid = (await state(name, "Ready"))["pid"]
        namespace = await works(one, eventually)
        await eventually(lambda: writers_in(tenant.audit, namespace=namespace) == {former})
        await fleet.put_secret("a", with_token_of(latter))
        file = mcm.state / component_name(name) / "files" / "token"
        await eventually(lambda: file.read_text() == configs[latter].token)
        taken = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_TOKEN_SECONDS)
        await eventually(lambda: dt.datetime.now(dt.UTC) > taken, timeout=2 * _TOKEN_SECONDS)

        await one.delete(SERVICE_ACCOUNTS, former, namespace="kube-system")
        # An API server knows for 10 s that it accepted a token.
        await eventually(lambda: refused(outdated), timeout=30.0)
        gate.cut()
        namespace = await works(one, eventually)
        await eventually(lambda: writers_in(tenant.audit, namespace=namespace) == {latter})
        await one.delete(NAMESPACES, namespace)
        await eventually(lambda: gone(one, NAMESPACES, namespace), timeout=_DEADLINE_SECONDS)
        assert (await state(name, "Ready"))["pid"] == pid
        assert mcm.clusters()[name]["restarts"] == 0
        answers = (await asyncio.to_thread(samples, mcm))["rest_client_requests_total", name]
        assert {"200", "201"} <= answers.keys()
        assert "401" not in answers


@pytest.mark.timeout(180)
async def test_an_exchanged_ca_is_given_to_namespaces_by_the_same_engagement(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """kube-controller-manager reads the root CA once, so its process is another one; the cluster is the same."""
    tenant = tenants["one"]
    secret, old = tenant.controllers_secret(), tenant.authorities.serving.certificate
    both = old + create_authority("next").certificate
    client = issue_client(tenant.authorities.client, user=CONTROLLERS_USER, groups=("system:masters",))
    kubeconfig = render_kubeconfig(server=tenant.server, ca=both, user=CONTROLLERS_USER, client=client)
    mcm.start()
    name = await fleet.register("a", secret, server=tenant.server)
    pid = (await state(name, "Ready"))["pid"]
    await fleet.put_secret("a", secret | {"ca.crt": both, "kubeconfig": kubeconfig})
    await state(name, "Ready", lambda found: found["pid"] != pid)

    namespace = await works(one, eventually)
    root = await eventually(lambda: one.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=namespace))
    assert root["data"]["ca.crt"].encode() == both
    assert mcm.log.read_text().count(f"cluster {name}: engaged") == 1


@pytest.mark.timeout(180)
async def test_an_exchanged_authority_of_the_api_server_restarts_nobody_who_knows_it(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually, tmp_path: Path
) -> None:
    """With both authorities in the file the process goes on; where the certificate is exchanged at once it cannot."""
    tenant, old, new = tenants["one"], create_authority("old"), create_authority("new")
    both = old.certificate + new.certificate
    secret, token = tenant.controllers_secret(), await controllers_token(one, account=fleet.name("a"))

    def trusting(authority: bytes) -> dict[str, bytes]:
        config = {"cluster": {"server": tenant.server, "certificate-authority-data": encoded(authority)}}
        user = {"name": "a", "user": {"token": token}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
        whole = {"clusters": [{"name": "a"} | config], "users": [user], "contexts": [context], "current-context": "a"}
        return secret | {"kubeconfig": json.dumps(whole).encode()}

    front = Front(tenant.config, directory=tmp_path)
    front.sign(old)
    mcm.start()
    async with gate_to(tenant.server, front=front) as gate:
        name = await fleet.register("a", trusting(old.certificate), server=gate.url)
        pid = (await state(name, "Ready"))["pid"]
        await fleet.put_secret("a", trusting(both))
        file = mcm.state / component_name(name) / "files" / "server-ca.crt"
        await eventually(lambda: file.read_bytes() == both)
        gate.cut()
        await works(one, eventually)
        assert (await state(name, "Ready"))["pid"] == pid

        front.sign(new)
        gate.cut()
        await state(name, "Ready", lambda found: found["pid"] != pid)
        await works(one, eventually)
        pid = mcm.clusters()[name]["pid"]
        await fleet.put_secret("a", trusting(new.certificate))
        await eventually(lambda: file.read_bytes() == new.certificate)
        gate.cut()
        await works(one, eventually)
        assert (await state(name, "Ready"))["pid"] == pid


@pytest.mark.timeout(180)
async def test_edits_in_a_row_come_to_one_restart_and_to_none_where_they_lead_back(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    server, services = tenants["one"].server, ("Controllers",)
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=server, profile="Core")
    pid = (await state(name, "Ready"))["pid"]
    for profile in ("Full", "Nodeless", "Core"):
        await fleet.resolve("a", server=server, secret="a", profile=profile)
    # The last edit is followed no earlier than those before it, and says nothing new to the instance.
    await fleet.resolve("a", server=server, secret="a", profile="Core", services=(*services, "Workloads"))
    await fleet.put_secret("a", tenants["one"].controllers_secret())
    await eventually(lambda: "is renewed" in mcm.log.read_text(), timeout=20.0)
    assert (await state(name, "Ready"))["pid"] == pid

    for profile in ("Full", "Core", "Nodeless"):
        await fleet.resolve("a", server=server, secret="a", profile=profile)
    found = await state(name, "Ready", lambda found: found["profile"] == "Nodeless")
    assert found["pid"] != pid
    assert mcm.log.read_text().count(f"cluster {name}: engaged") == 2


@pytest.mark.timeout(180)
async def test_a_deleted_registration_leaves_nothing(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server, profile="Core")
    found = await state(name, "Ready")
    assert found["profile"] == "Core"
    assert mcm.instances() == [found["pid"]]
    _, metrics = await asyncio.to_thread(mcm.get, "/metrics")
    assert f'mcm_instance_up{{cluster="{name}"}} 1.0' in metrics
    assert f'mcm_instance_pss_bytes{{cluster="{name}"}}' in metrics

    await fleet.client.delete(REGISTRATIONS, name)
    await eventually(lambda: not mcm.instances() and not mcm.directories())
    # It is in the summaries until the registration was told, or is known to be gone.
    await eventually(lambda: asyncio.to_thread(mcm.clusters), lambda found: name not in found)
    _, metrics = await asyncio.to_thread(mcm.get, "/metrics")
    assert name not in metrics


@pytest.mark.timeout(180)
async def test_a_killed_instance_comes_back(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    old = (await state(name, "Ready"))["pid"]
    os.kill(old, signal.SIGKILL)
    found = await state(name, "Ready", lambda found: found["pid"] != old)
    assert found["restarts"] == 1
    assert found["exits"] == {"Killed": 1}
    assert found["message"] == ""
    await works(one, eventually)


@pytest.mark.timeout(180)
async def test_instances_die_with_a_killed_mcm_and_a_new_one_starts_them_again(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    kept = await fleet.register("kept", tenants["one"].controllers_secret(), server=tenants["one"].server)
    deleted = await fleet.register("deleted", tenants["two"].controllers_secret(), server=tenants["two"].server)
    left = await fleet.register("left", tenants["two"].controllers_secret(), server=tenants["two"].server)
    old = {(await state(name, "Ready"))["pid"] for name in (kept, deleted, left)}
    running = ("True", "InstanceRunning", fleet.uid_at(tenants["two"].server))
    await eventually(lambda: fleet.told("left"), lambda told: told == running)
    assert mcm.end(signal.SIGKILL) == -signal.SIGKILL
    await eventually(lambda: not mcm.instances())
    await fleet.client.delete(REGISTRATIONS, deleted)
    await fleet.withdraw("left")
    assert await fleet.told("left") == running

    mcm.start()
    found = await state(kept, "Ready")
    assert found["pid"] not in old
    assert mcm.directories() == [component_name(kept)]
    await eventually(lambda: fleet.told("left"), lambda told: told == ("False", "Ended", ""))
    await works(one, eventually)


@pytest.mark.timeout(180)
async def test_control_planes_that_do_not_answer_disturb_no_other(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    secret, foreign = tenants["one"].controllers_secret(), tenants["two"].controllers_secret()
    async with silent() as address:
        mcm.start()
        names = {
            "silent": await fleet.register("silent", secret, server=f"https://{address}"),
            "refused": await fleet.register("refused", secret, server="https://127.0.0.1:1"),
            "foreign": await fleet.register("foreign", foreign, server=tenants["one"].server),
        }
        good = await fleet.register("good", secret, server=tenants["one"].server)
        await state(good, "Ready")
        await works(one, eventually)

        def told() -> dict[str, Any]:
            return {stem: mcm.clusters()[name] for stem, name in names.items()}

        words = {"refused": "Connect call failed", "foreign": "certificate", "silent": "does not answer"}
        found = await eventually(
            lambda: asyncio.to_thread(told),
            lambda found: all(word in found[stem]["message"] for stem, word in words.items()),
            timeout=_DEADLINE_SECONDS,
        )
        # No process is started for what it could not work with.
        assert {(summary["state"], summary["pid"]) for summary in found.values()} == {("Pending", None)}
        refused = ("False", "APIServerUnreachable", fleet.uid_at("https://127.0.0.1:1"))
        await eventually(lambda: fleet.told("refused"), lambda told: told == refused)
        status = (await fleet.client.get(REGISTRATIONS, names["refused"]))["status"]
        [condition] = [item for item in status["conditions"] if item["type"] == "Running"]
        assert "https://127.0.0.1:1" in condition["message"]
        assert (await asyncio.to_thread(mcm.get, "/readyz"))[0] == 200
        assert (await state(good, "Ready"))["restarts"] == 0


@pytest.mark.timeout(180)
async def test_an_instance_makes_way_for_another_controller_manager(
    mcm: Any, fleet: Fleet, tenants: Any, two: Client, state: Any, eventually: Eventually
) -> None:
    """Somebody else's holds the Lease of the tenant, as kube-controller-manager does by default."""
    mcm.start()
    name = await fleet.register("a", tenants["two"].controllers_secret(), server=tenants["two"].server)
    await state(name, "Ready")
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "theirs", "leaseDurationSeconds": 60, "renewTime": now, "acquireTime": now}
    lease = manifest("coordination.k8s.io/v1", "Lease", "kube-controller-manager", namespace="kube-system", spec=spec)
    await two.create(LEASES, lease)
    try:
        foreign = ("False", "ForeignControllerManager", fleet.uid_at(tenants["two"].server))
        await eventually(lambda: fleet.told("a"), lambda told: told == foreign, timeout=_DEADLINE_SECONDS)
        assert not mcm.instances()
    finally:
        await two.delete(LEASES, "kube-controller-manager", namespace="kube-system")
    await state(name, "Ready")


@pytest.mark.timeout(180)
async def test_instances_tell_their_metrics_to_mcm_and_to_nobody_else(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    for stem in ("one", "two"):
        await fleet.register(stem, tenants[stem].controllers_secret(), server=tenants[stem].server)
    names = [fleet.name(stem) for stem in ("one", "two")]
    pids = {name: (await state(name, "Ready"))["pid"] for name in names}
    await works(one, eventually)

    found = await asyncio.to_thread(samples, mcm)
    for name in names:
        told = {sample for sample, cluster in found if cluster == name}
        assert told - OWN_SERIES == {series for series in SERIES if not series.startswith("scheduler_")}
        assert found["rest_client_requests_total", name]["2xx"] > 10
        assert found["workqueue_adds_total", name][""] > 0
        assert found["mcm_instance_scrape_success", name][""] == 1
    assert ("process_cpu_seconds_total", "") in found

    # Not without a certificate, and not with one of the tenant's, whose API server would say yes.
    [port] = {json.loads((mcm.state / component_name(names[0]) / "address.json").read_text())["ports"]["https"]}
    admin = mcm.state.parent / "admin.pem"
    client = issue_client(tenants["one"].authorities.client, user="admin", groups=("system:masters",))
    admin.write_bytes(client.certificate + client.key)
    for certificate in (None, admin):
        assert await asyncio.to_thread(status_of, f"https://127.0.0.1:{port}/metrics", certificate) in {401, 403}

    # One that hangs is told as such, and in nobody's way.
    os.kill(pids[names[0]], signal.SIGSTOP)
    try:
        found = await asyncio.to_thread(samples, mcm)
        assert found.get(("mcm_instance_scrape_success", names[0]), {"": 0})[""] == 0
        assert ("workqueue_depth", names[0]) not in found
        assert ("workqueue_depth", names[1]) in found
    finally:
        os.kill(pids[names[0]], signal.SIGCONT)
    await fleet.client.delete(REGISTRATIONS, names[1])
    await eventually(lambda: asyncio.to_thread(mcm.clusters), lambda found: list(found) == [names[0]])
    assert {cluster for _, cluster in await asyncio.to_thread(samples, mcm)} == {"", names[0]}


@pytest.mark.timeout(180)
async def test_events_and_logs_tell_of_instances_and_no_registration_is_written_to(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    mcm.start("--instance-metrics=full", "--instance-logs=json", "--no-report-status")
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    metadata = (await fleet.client.get(REGISTRATIONS, name))["metadata"]
    uid, resolved = metadata["uid"], metadata["resourceVersion"]
    old = (await state(name, "Ready"))["pid"]

    found = await asyncio.to_thread(samples, mcm)
    assert len([sample for sample, cluster in found if cluster == name]) > 200
    assert len(found["workqueue_depth", name]) > 20
    assert len(found["process_cpu_seconds_total", name]) == len(found["process_cpu_seconds_total", ""]) == 1

    os.kill(old, signal.SIGKILL)
    await state(name, "Ready", lambda found: found["pid"] != old and "SIGKILL" in found["lastError"])
    table = (await asyncio.to_thread(mcm.get, "/clusters?format=table"))[1].splitlines()
    [row] = [line for line in table if line.startswith(name)]
    assert "was ended by signal SIGKILL" in row
    assert re.search(r" [0-9]+Mi ", row)
    assert f"[+]cluster/{name} Ready" in (await asyncio.to_thread(mcm.get, "/readyz?verbose"))[1]

    async def told() -> list[tuple[str, str, str]]:
        events = (await fleet.client.list(EVENTS, namespace="default")).items
        ours = [event for event in events if event["involvedObject"].get("uid") == uid]
        return [(event["type"], event["reason"], event["message"]) for event in ours]

    events = await eventually(told, lambda found: len(found) >= 2)
    kinds = {(kind, reason) for kind, reason, _ in events}
    assert kinds == {("Normal", "InstanceStarted"), ("Warning", "Killed")}
    [why] = [message for _, reason, message in events if reason == "Killed"]
    assert why.startswith("was ended by signal SIGKILL")
    assert (await fleet.client.get(REGISTRATIONS, name))["metadata"]["resourceVersion"] == resolved
    assert await fleet.told("a") == ("", "", "")

    assert mcm.end() == 0
    lines = [json.loads(line) for line in mcm.output.read_text().splitlines()]
    assert {line["cluster"] for line in lines} == {name}
    assert any("Serving securely" in line["message"] for line in lines)
    assert {line["level"] for line in lines} >= {"info", "warning"}


@pytest.mark.timeout(120)
async def test_sigterm_ends_every_instance(mcm: Any, fleet: Fleet, tenants: Any, state: Any) -> None:
    mcm.start()
    for stem in ("one", "two"):
        await fleet.register(stem, tenants[stem].controllers_secret(), server=tenants[stem].server)
    for stem in ("one", "two"):
        await state(fleet.name(stem), "Ready")
    assert len(mcm.instances()) == 2
    assert await asyncio.to_thread(mcm.end) == 0
    assert not mcm.instances()
    assert not mcm.directories()
    assert {await fleet.told(stem) for stem in ("one", "two")} == {("False", "Ended", "")}


async def test_mcm_may_read_registrations_and_single_secrets_and_write_a_status_only(
    api_server: Any, fleet: Fleet, tenants: Any
) -> None:
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    await fleet.client.create(SECRETS, manifest("v1", "Secret", "other", namespace=fleet.namespace))
    async with Client(ClusterConfig.load(api_server.mcm_kubeconfig)) as mcm:
        before = await fleet.client.get(REGISTRATIONS, name)
        assert (await mcm.get(SECRETS, "a", namespace=fleet.namespace))["data"]
        for attempt in (
            mcm.get(SECRETS, "other", namespace=fleet.namespace),
            mcm.list(SECRETS, namespace=fleet.namespace),
            mcm.list(SECRETS),
            mcm.delete(SECRETS, "a", namespace=fleet.namespace),
            mcm.delete(REGISTRATIONS, name),
            mcm.patch(REGISTRATIONS, name, {"spec": {"services": []}}),
            mcm.replace(REGISTRATIONS, before, subresource="status"),
            mcm.list(NAMESPACES),
        ):
            with pytest.raises(Forbidden):
                await attempt
        changes = {"spec": {"services": []}, "metadata": {"labels": {"a": "b"}, "finalizers": ["a.test/b"]}}
        body = {**changes, "status": {"instance": {"controlPlaneUID": "uid-1"}}}
        after = await mcm.patch(REGISTRATIONS, name, body, subresource="status")
        assert after["status"] == before["status"] | body["status"]
        assert after["spec"] == before["spec"]
        assert {"labels", "finalizers"}.isdisjoint(after["metadata"])


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that accepts and never says anything."""
    done = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        done.set()
        server.close()


class Front:
    """Stands before an API server with a certificate of its own, which can be exchanged."""

    def __init__(self, config: ClusterConfig, *, directory: Path) -> None:
        assert config.ca_data is not None
        self.inside = ssl.create_default_context(cadata=config.ca_data.decode())
        self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._file = directory / "front.pem"

    def sign(self, authority: KeyPair) -> None:
        pair = issue_serving(authority, common_name="front", hosts=("127.0.0.1",))
        self._file.write_bytes(pair.certificate + pair.key)
        self.outside.load_cert_chain(self._file)


async def controllers_token(client: Client, *, account: str) -> str:
    """A token with all rights in a control plane, of a ServiceAccount that this makes."""
    await client.create(SERVICE_ACCOUNTS, manifest("v1", "ServiceAccount", account, namespace="kube-system"))
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = manifest(f"{group}/v1", "ClusterRoleBinding", account, roleRef=role, subjects=[subject])
    await client.create(CLUSTER_ROLE_BINDINGS, binding)
    path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
    made: Any = await client.request("POST", path, body={"spec": {}})
    return str(made["status"]["token"])


def writers_in(audit: Path, *, namespace: str) -> set[str]:
    """Names of the users whose requests changed something in a namespace; the part after the last colon."""
    events = [json.loads(line) for line in audit.read_text().splitlines() if namespace in line]
    inside = [event for event in events if event["objectRef"].get("namespace") == namespace]
    return {event["user"]["username"].rpartition(":")[2] for event in inside}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
