"""PodRuntime against a real API server with the real controllers of Deployments and StatefulSets."""

from __future__ import annotations

import asyncio
import base64

import pytest

from kplane.api.names import PROTECTION_FINALIZER
from kplane.provider import NotFound
from kplane.provider.client.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
)
from kplane.workloads import DATA, File, Phase, Port, Resources, RuntimeFailure
from kplane.workloads.pods import Image

from .conftest import server

pytestmark = pytest.mark.integration

KINDS = (DEPLOYMENTS, STATEFUL_SETS, SERVICES, SECRETS, NETWORK_POLICIES, POD_DISRUPTION_BUDGETS)


async def objects(cluster, namespace):
    names = {}
    for kind in (*KINDS, PERSISTENT_VOLUME_CLAIMS):
        names[str(kind)] = [
            obj["metadata"]["name"] for obj in (await cluster.client.list(kind, namespace=namespace)).items
        ]
    return names


async def test_deployment_is_admitted_by_a_restricted_namespace(cluster):
    namespace = await cluster.namespace("pods-deployment", **{"pod-security.kubernetes.io/enforce": "restricted"})
    name = f"{namespace}--server"
    async with cluster.runtime() as runtime:
        address = await runtime.reserve(name, ports=["https"])
        assert (address.host, dict(address.ports)) == ("server.pods-deployment.svc", {"https": 6443})
        assert (address.listen, address.external) == ("0.0.0.0", None)
        await runtime.apply(server(name))
        pod = await cluster.pod(namespace)
        assert runtime.state(name).phase is Phase.STARTING
        await cluster.run_pod(pod)
        await cluster.phase(runtime, name, Phase.READY)
        assert name in runtime.names()
    assert await objects(cluster, namespace) == {
        "Deployment": ["server"],
        "StatefulSet": [],
        "Service": ["server"],
        "Secret": ["server-files"],
        "NetworkPolicy": ["server"],
        "PodDisruptionBudget": ["server"],
        "PersistentVolumeClaim": [],
    }
    container = pod["spec"]["containers"][0]
    assert container["args"] == ["--config=/etc/kplane/config", "--literal=$$(NOT_A_VARIABLE)"]
    secret = await cluster.client.get(SECRETS, "server-files", namespace=namespace)
    assert base64.b64decode(secret["data"]["config"]) == b"one"


async def test_equal_description_is_not_written_and_edits_are_undone(cluster):
    namespace = await cluster.namespace("pods-idempotent")
    name = f"{namespace}--server"

    async def deployment():
        return await cluster.client.get(DEPLOYMENTS, "server", namespace=namespace)

    async with cluster.runtime() as runtime:
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(server(name))
        await cluster.pod(namespace)
        before = await deployment()
        await runtime.apply(server(name))
        assert (await deployment())["metadata"]["generation"] == before["metadata"]["generation"]
        await cluster.client.patch(DEPLOYMENTS, "server", {"spec": {"replicas": 5}}, namespace=namespace)

        async def replicas():
            await runtime.apply(server(name))
            return (await deployment())["spec"]["replicas"]

        await cluster.eventually(replicas, lambda number: number == 1)
        await cluster.client.delete(SERVICES, "server", namespace=namespace)

        async def address_is_back():
            await runtime.reserve(name, ports=["https"])
            return await cluster.client.get(SERVICES, "server", namespace=namespace)

        await cluster.eventually(address_is_back)
    async with cluster.runtime() as another:
        await another.apply(server(name))
        assert (await deployment())["metadata"]["generation"] == before["metadata"]["generation"] + 2


async def test_only_a_file_without_reload_replaces_the_pods(cluster):
    namespace = await cluster.namespace("pods-files")
    name = f"{namespace}--server"
    async with cluster.runtime() as runtime:
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(server(name))
        first = await cluster.pod(namespace)
        await cluster.run_pod(first)
        await cluster.phase(runtime, name, Phase.READY)
        await cluster.eventually(lambda: runtime.settled(name))

        renewed = {"config": File(b"one"), "tls.crt": File(b"renewed", reloaded=True)}
        await runtime.apply(server(name, files=renewed))
        secret = await cluster.client.get(SECRETS, "server-files", namespace=namespace)
        assert base64.b64decode(secret["data"]["tls.crt"]) == b"renewed"
        deployment = await cluster.client.get(DEPLOYMENTS, "server", namespace=namespace)
        assert deployment["metadata"]["generation"] == 1

        await runtime.apply(server(name, files={**renewed, "config": File(b"two")}))
        second = await cluster.pod(namespace, but=(first["metadata"]["name"],))
        # The first pod stays until the second pod is ready.
        assert first["metadata"]["name"] in [pod["metadata"]["name"] for pod in await cluster.pods(namespace)]
        assert runtime.state(name).phase is Phase.READY
        assert not runtime.settled(name)
        await cluster.run_pod(second)
        await cluster.eventually(
            lambda: cluster.pods(namespace),
            lambda pods: [pod["metadata"]["name"] for pod in pods] == [second["metadata"]["name"]],
        )
        await cluster.eventually(lambda: runtime.settled(name))
    async with cluster.runtime() as another:
        # The next operator has no record of the desired description.
        assert not another.settled(name)


async def test_former_version_runs_until_the_new_version_is_ready(cluster, container):
    namespace = await cluster.namespace("pods-version")
    name = f"{namespace}--server"

    def image(pod):
        return pod["spec"]["containers"][0]["image"]

    async with cluster.runtime() as runtime:
        await runtime.reserve(name, ports=["https"])
        assert await runtime.version("server") == "1.2.3"
        await runtime.apply(server(name, version="1.2.3"))
        first = await cluster.pod(namespace)
        assert image(first) == "registry.example/server:1.2.3"
        await cluster.run_pod(first)
        await cluster.phase(runtime, name, Phase.READY)
        await cluster.eventually(lambda: runtime.state(name).rolling, lambda rolling: not rolling)

        await runtime.apply(server(name, version="1.3.0"))
        assert not runtime.settled(name), "known from the moment that it is written"
        await cluster.eventually(lambda: runtime.state(name).version, lambda version: version == "1.3.0")
        second = await cluster.pod(namespace, but=(first["metadata"]["name"],))
        assert image(second) == "registry.example/server:v1.3.0"
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        await cluster.say(second, containerStatuses=[container(state=waiting, ready=False)])
        state = await cluster.eventually(lambda: runtime.state(name), lambda state: "no such image" in state.message)
        assert (state.phase, state.rolling, state.unobtainable) == (Phase.READY, True, False), "the first one serves on"

        await cluster.run_pod(second)
        await cluster.eventually(lambda: runtime.state(name).rolling, lambda rolling: not rolling)
        assert [image(pod) for pod in await cluster.pods(namespace)] == ["registry.example/server:v1.3.0"]


async def test_changed_resources_replace_the_pods(cluster):
    namespace = await cluster.namespace("pods-resources")
    name = f"{namespace}--server"
    async with cluster.runtime() as runtime:
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(server(name))
        first = await cluster.pod(namespace)
        await cluster.run_pod(first)
        await cluster.phase(runtime, name, Phase.READY)
        resources = Resources(cpu_request="1", memory_request="1Gi", memory_limit="2Gi", cpu_limit="2")
        await runtime.apply(server(name, resources=resources))
        second = await cluster.pod(namespace, but=(first["metadata"]["name"],))
        assert second["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"cpu": "2", "memory": "2Gi"},
        }
        assert runtime.state(name).phase is Phase.READY
        await cluster.run_pod(second)
        await cluster.eventually(lambda: runtime.state(name).rolling, lambda rolling: not rolling)


async def test_volume_claim_stays_until_the_component_is_deleted(cluster):
    namespace = await cluster.namespace("pods-data")
    name = f"{namespace}--store"
    component = server(name, args=(f"--data={DATA}",), data=True)
    async with cluster.runtime() as runtime:
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(component)
        pod = await cluster.pod(namespace)
        assert pod["spec"]["containers"][0]["args"] == ["--data=/var/lib/kplane/data"]
        await runtime.stop(name)
        assert await cluster.pods(namespace) == []
        await cluster.phase(runtime, name, Phase.ABSENT)
        assert runtime.state(name).version == "1.2.3"
        assert name in runtime.names()
        assert (await objects(cluster, namespace))["PersistentVolumeClaim"] == ["data-store-0"]
    # New settings apply to new components only: the volume claim templates of a StatefulSet are immutable.
    async with cluster.runtime(storage_size="20Gi") as runtime:
        await runtime.apply(component)
        claim = await cluster.client.get(PERSISTENT_VOLUME_CLAIMS, "data-store-0", namespace=namespace)
        assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
        await cluster.pod(namespace)
        # No pod of the claim ran on a node. The finalizers are removed because this cluster has no controller for them.
        await cluster.client.patch(
            PERSISTENT_VOLUME_CLAIMS, "data-store-0", {"metadata": {"finalizers": []}}, namespace=namespace
        )
        await runtime.delete(name)
        assert not any((await objects(cluster, namespace)).values())
        await cluster.eventually(lambda: name in runtime.names(), lambda known: not known)
        await runtime.delete(name)


async def test_data_mark_is_kept_over_a_restart_until_it_is_removed(cluster):
    namespace = await cluster.namespace("pods-marked")
    name = f"{namespace}--server"
    async with cluster.runtime() as runtime:
        assert await runtime.data_mark(name) is None
        assert not await runtime.has_data(name)
        with pytest.raises(RuntimeFailure, match="it has no volume in namespace pods-marked yet"):
            await runtime.mark_data(name, "one")
        await runtime.apply(server(name, data=True))
        await cluster.pod(namespace)
        assert await runtime.data_mark(name) is None
        await runtime.mark_data(name, "one")
        await runtime.mark_data(name, "two")
        assert await runtime.has_data(name)
        assert await runtime.data_mark(name) == "two"
    # The next operator reads the mark. An administrator removes the mark as in docs/how-to/dedicated-members.md.
    async with cluster.runtime() as runtime:
        assert await runtime.data_mark(name) == "two"
        await cluster.client.patch(
            PERSISTENT_VOLUME_CLAIMS,
            "data-server-0",
            {"metadata": {"annotations": {"controlplane.kplane.dev/data": None}}},
            namespace=namespace,
        )
        assert await runtime.data_mark(name) is None
        await runtime.delete(name)


async def test_volume_claim_is_protected_until_unprotect_or_delete(cluster):
    namespace = await cluster.namespace("pods-protected")
    name = f"{namespace}--store"
    component = server(name, args=(f"--data={DATA}",), data=True)

    async def finalizers():
        claim = await cluster.client.get(PERSISTENT_VOLUME_CLAIMS, "data-store-0", namespace=namespace)
        return claim["metadata"].get("finalizers", [])

    async with cluster.runtime() as runtime:
        assert await runtime.volume(name) is None
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(component)
        # The StatefulSet creates the claim. The next apply adds the finalizer: the operator applies after each change.
        await cluster.pod(namespace)
        assert await runtime.volume(name) == f"PersistentVolumeClaim {namespace}/data-store-0"
        before = await finalizers()
        await runtime.apply(component)
        assert await finalizers() == [*before, PROTECTION_FINALIZER]
        await runtime.stop(name)
        assert PROTECTION_FINALIZER in await finalizers()

        await runtime.unprotect(name)
        assert await finalizers() == before
        await runtime.apply(component)
        assert PROTECTION_FINALIZER in await finalizers()

        await cluster.client.delete(PERSISTENT_VOLUME_CLAIMS, "data-store-0", namespace=namespace)
        await cluster.client.patch(
            PERSISTENT_VOLUME_CLAIMS,
            "data-store-0",
            {"metadata": {"finalizers": [PROTECTION_FINALIZER]}},
            namespace=namespace,
        )
        assert await finalizers() == [PROTECTION_FINALIZER]
        await runtime.delete(name)
        assert not any((await objects(cluster, namespace)).values())
        await runtime.unprotect(name)


async def test_state_message_has_the_cause_of_a_pod_failure(cluster, container):
    namespace = await cluster.namespace("pods-trouble")
    name = f"{namespace}--server"
    async with cluster.runtime() as runtime:
        changes: list[str] = []
        unsubscribe = runtime.subscribe(changes.append)
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(server(name))
        pod = await cluster.pod(namespace)

        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
        await cluster.say(pod, conditions=[unscheduled])
        await cluster.eventually(lambda: runtime.state(name).message, lambda said: "has no node: 0/3 nodes" in said)

        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        await cluster.say(pod, conditions=[], containerStatuses=[container(state=waiting, ready=False)])
        await cluster.eventually(
            lambda: runtime.state(name).message, lambda said: "ImagePullBackOff: no such image" in said
        )
        assert runtime.state(name).unobtainable

        crashed = {"terminated": {"exitCode": 1, "reason": "Error", "message": "bad flag --x"}}
        looping = container(state={"waiting": {"reason": "CrashLoopBackOff"}}, ready=False, restarts=3, last=crashed)
        await cluster.say(pod, containerStatuses=[looping])
        state = await cluster.phase(runtime, name, Phase.BACKOFF)
        assert "Error, exit code 1: bad flag --x" in state.message
        assert state.restarts == 3

        await cluster.run_pod(pod)
        await cluster.phase(runtime, name, Phase.READY)
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z"}
        running = container(state={"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=False)
        await cluster.say(pod, conditions=[not_ready], containerStatuses=[running])
        await cluster.phase(runtime, name, Phase.UNREADY)
        unsubscribe()
        assert set(changes) == {name}


async def test_state_message_has_the_refusal_by_pod_security(cluster):
    namespace = await cluster.namespace("pods-refused", **{"pod-security.kubernetes.io/enforce": "restricted"})
    name = f"{namespace}--server"
    async with cluster.runtime(
        images={"server": Image("registry.example/server:1", capabilities=("NET_RAW",))}
    ) as runtime:
        await runtime.apply(server(name))
        state = await cluster.eventually(lambda: runtime.state(name), lambda state: "PodSecurity" in state.message)
        assert state.phase is Phase.STARTING


async def test_pull_secrets_are_copied_and_deleted_with_last_component(cluster):
    source = await cluster.namespace("pods-registries")
    namespace = await cluster.namespace("pods-pulling")
    name = f"{namespace}--server"
    secret = {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": base64.b64encode(b"{}").decode()}}
    async with cluster.runtime(pull_secrets=("mine",), pull_secrets_namespace=source) as runtime:
        # A missing Secret does not fail apply, because existing pods do not need the Secret.
        await runtime.apply(server(name))
        await cluster.client.create(SECRETS, {"metadata": {"name": "mine", "namespace": source}, **secret})
        await runtime.apply(server(name, args=("--changed",)))
        copied = await cluster.client.get(SECRETS, "mine", namespace=namespace)
        assert (copied["type"], copied["data"]) == (secret["type"], secret["data"])
        deployment = await cluster.client.get(DEPLOYMENTS, "server", namespace=namespace)
        assert deployment["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "mine"}]
        # The next pod of the other component may need the Secret.
        await runtime.apply(server(f"{namespace}--other", single=True))
        await cluster.eventually(lambda: runtime.state(f"{namespace}--other").phase is not Phase.ABSENT)
        await runtime.delete(f"{namespace}--other")
        assert (await cluster.client.get(SECRETS, "mine", namespace=namespace))["data"] == secret["data"]
        await runtime.delete(name)
        with pytest.raises(NotFound):
            await cluster.client.get(SECRETS, "mine", namespace=namespace)
    await cluster.client.get(SECRETS, "mine", namespace=source)


async def test_pull_secrets_stay_while_another_component_is_applied(cluster, monkeypatch):
    source = await cluster.namespace("pods-registries-beside")
    namespace = await cluster.namespace("pods-pulling-beside")
    await cluster.client.create(SECRETS, {"metadata": {"name": "mine", "namespace": source}})
    apply, copied, go_on = cluster.client.apply, asyncio.Event(), asyncio.Event()

    async def held(resource, obj, **options):
        if resource is NETWORK_POLICIES and obj["metadata"]["name"] == "next":
            copied.set()
            await go_on.wait()
        return await apply(resource, obj, **options)

    monkeypatch.setattr(cluster.client, "apply", held)
    async with cluster.runtime(pull_secrets=("mine",), pull_secrets_namespace=source) as runtime:
        await runtime.apply(server(f"{namespace}--last", single=True))
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.apply(server(f"{namespace}--next")))
            await copied.wait()
            deletion = group.create_task(runtime.delete(f"{namespace}--last"))
            # The deletion waits for the apply of the other component. Without another user, the deletion would be done.
            await cluster.eventually(lambda: deletion.done() or runtime._pulling._users[namespace] == 2)
            go_on.set()
        await cluster.client.get(SECRETS, "mine", namespace=namespace)
        await runtime.delete(f"{namespace}--next")
        with pytest.raises(NotFound):
            await cluster.client.get(SECRETS, "mine", namespace=namespace)


async def test_stop_and_delete_leave_objects_of_other_owners(cluster):
    namespace = await cluster.namespace("pods-others")
    labels = {"app": "theirs"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "x", "image": "registry.example/x:1"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await cluster.client.create(DEPLOYMENTS, {"metadata": {"name": "server", "namespace": namespace}, "spec": spec})
    await cluster.client.create(SECRETS, {"metadata": {"name": "server-files", "namespace": namespace}})
    async with cluster.runtime() as runtime:
        await runtime.stop(f"{namespace}--server")
        await runtime.delete(f"{namespace}--server")
    deployment = await cluster.client.get(DEPLOYMENTS, "server", namespace=namespace)
    assert deployment["spec"]["replicas"] == 1
    assert "deletionTimestamp" not in deployment["metadata"]
    await cluster.client.get(SECRETS, "server-files", namespace=namespace)


async def test_missing_namespace_is_named_and_others_are_unaffected(cluster):
    namespace = await cluster.namespace("pods-good")
    async with cluster.runtime() as runtime:
        with pytest.raises(RuntimeFailure, match="Component nowhere--server: its Service in namespace nowhere"):
            await runtime.reserve("nowhere--server", ports=["https"])
        with pytest.raises(RuntimeFailure, match="its objects in namespace nowhere"):
            await runtime.apply(server("nowhere--server"))
        await runtime.delete("nowhere--server")
        assert runtime.state("nowhere--server").phase is Phase.ABSENT
        await runtime.reserve(f"{namespace}--server", ports=["https"])


async def test_labelled_object_in_a_foreign_namespace_is_no_component(cluster):
    own_namespace = await cluster.namespace("pods-mine")
    foreign_namespace = await cluster.namespace("pods-foreign")
    name = f"{own_namespace}--server"
    labels = {"app.kubernetes.io/managed-by": "kplane", "controlplane.kplane.dev/component": name}
    body = {
        "metadata": {"name": "server", "namespace": foreign_namespace, "labels": labels},
        "spec": {"ports": [{"port": 1}]},
    }
    async with cluster.runtime() as runtime:
        notification = asyncio.Event()
        runtime.subscribe(lambda changed: notification.set())
        await cluster.client.create(SERVICES, body)
        await asyncio.wait_for(notification.wait(), 60)
        assert name not in runtime.names()
        assert runtime.state(name).phase is Phase.ABSENT


async def test_replicas_are_spread_and_evicted_one_at_a_time(cluster):
    namespace = await cluster.namespace("pods-replicas")
    name = f"{namespace}--server"
    async with cluster.runtime(replicas=3) as runtime:
        await runtime.apply(server(name, ports=(Port(number=6443, name="https"),)))
        deployment = await cluster.client.get(DEPLOYMENTS, "server", namespace=namespace)
        budget = await cluster.client.get(POD_DISRUPTION_BUDGETS, "server", namespace=namespace)
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    constraints = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [constraint["topologyKey"] for constraint in constraints] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert budget["spec"]["maxUnavailable"] == 1
