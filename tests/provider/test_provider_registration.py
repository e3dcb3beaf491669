"""Clusters from registrations, on a real API server, and statuses of all kinds."""

from __future__ import annotations

import asyncio
import base64
import re
import uuid

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import RegistrationMode
from kplane.provider import Client
from kplane.provider.client.resources import SECRETS
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers.kplane.registration import (
    CONTROLLERS_ATTRIBUTE,
    PROFILE_ATTRIBUTE,
    REGISTRATIONS,
    RegistrationProvider,
    read_desired,
)

SERVICES = frozenset({"Controllers"})
MODES = (RegistrationMode.SHARED, RegistrationMode.DEDICATED, None)


def status(namespace, *, generation=1, server="https://127.0.0.1:1", **fields):
    return {
        "ready": True,
        "observedGeneration": generation,
        "resolvedEndpoint": server,
        "resolvedKubeconfigSecretRef": {"name": "admin", "namespace": namespace},
        "services": ["Controllers"],
        "controlPlaneUID": "uid-1",
        "controllers": {"profile": "Core"},
        **fields,
    }


def selected(client, namespace):
    """Return a provider of the registrations of a test."""
    return RegistrationProvider(client, services=SERVICES, label_selector=f"test={namespace}")


class Management:
    """Writes the objects that the operator writes."""

    def __init__(self, client, namespace, ca):
        self.client, self.namespace = client, namespace
        self.ca = base64.b64encode(ca).decode()
        self.name = f"reg-{uuid.uuid4().hex[:8]}"

    async def register(self):
        body = {
            "metadata": {"name": self.name},
            "spec": {"controlPlaneRef": {"name": "x"}, "services": ["controllers"]},
        }
        body["metadata"]["labels"] = {"test": self.namespace}
        await self.client.create(REGISTRATIONS, body)

    async def answer(self, **fields):
        body = {"status": status(self.namespace, **fields)}
        await self.client.patch(REGISTRATIONS, self.name, body, subresource="status")

    async def secret(self, name, *, token="one", pair=None, **data):
        user = {"token": token}
        if pair is not None:
            names = ("client-certificate-data", "client-key-data")
            user = {name: base64.b64encode(part).decode() for name, part in zip(names, pair, strict=True)}
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": "https://other.test", "certificate-authority-data": self.ca}}
            ],
            "users": [{"name": "c", "user": user}],
        }
        data = {"kubeconfig": yaml.safe_dump(document), **data}
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        body = {"metadata": {"name": name, "namespace": self.namespace}, "data": encoded}
        await self.client.apply(SECRETS, body, force=True)


@pytest.fixture
async def management(client, namespace, tools):
    management = Management(client, namespace, tools.Authority().pem)
    yield management
    for found in (await client.list(REGISTRATIONS, label_selector=f"test={namespace}")).items:
        await client.delete(REGISTRATIONS, found["metadata"]["name"])


@pytest.mark.parametrize(
    ("controllers", "listed"),
    [
        ({"explicit": ["*", "-job-controller"]}, "*,-job-controller"),
        ({"profile": "Core"}, ""),
        ({"explicit": [1, None, "a"]}, "a"),
        ({"explicit": "abc"}, ""),
        (None, ""),
    ],
)
def test_controllers_list_is_an_attribute(controllers, listed):
    registration = {"metadata": {"name": "a", "generation": 1}, "status": status("n", controllers=controllers)}
    desired = read_desired(registration, services=frozenset({"controllers"}))
    assert desired.attributes[CONTROLLERS_ATTRIBUTE] == listed


@pytest.mark.parametrize(
    ("fields", "shared", "dedicated", "any_mode"),
    [
        ({}, True, False, True),
        ({"mode": "Shared"}, True, False, True),
        ({"mode": "Dedicated"}, False, True, True),
        # The instance of this mode starts after that of the other mode has ended.
        ({"mode": "Shared", "instance": {"mode": "Dedicated"}}, False, False, False),
        ({"mode": "Dedicated", "instance": {}}, False, False, True),
        ({"mode": "Dedicated", "instance": {"mode": "Dedicated"}}, False, True, False),
        ({"mode": "Shared", "instance": {"mode": "Shared"}}, True, False, True),
        ({"mode": "Shared", "instance": {"controlPlaneUID": "u"}}, True, False, True),
        # No instance claims a registration with an unknown mode.
        ({"mode": "Else"}, False, False, True),
        ({"instance": {"mode": "Else"}}, False, False, False),
    ],
)
def test_registrations_are_selected_by_mode(fields, shared, dedicated, any_mode):
    registration = {"metadata": {"name": "a", "generation": 1}, "status": status("n", **fields)}
    served = {mode: read_desired(registration, services=frozenset({"controllers"}), mode=mode) for mode in MODES}
    assert [served[mode] is not None for mode in MODES] == [shared, dedicated, any_mode]


@pytest.mark.integration
async def test_registration_cluster_is_engaged_updated_and_removed(
    client, namespace, management, eventually, caplog, telling
):
    async with telling(selected(client, namespace)) as clusters:
        await management.register()
        await management.answer()
        await eventually(lambda: caplog.text, lambda text: "admin is missing" in text)
        assert clusters.names() == []
        await management.secret("admin", token="one", **{"sa.key": "key"})
        await eventually(clusters.names, lambda names: names == [management.name])
        (engagement,) = await eventually(clusters.engagements)
        cluster = engagement.cluster
        assert (cluster.config.server, cluster.config.token) == ("https://127.0.0.1:1", "one")
        assert cluster.credentials["sa.key"] == b"key"
        assert cluster.attributes[PROFILE_ATTRIBUTE] == "Core"

        await management.secret("admin", token="two")
        await eventually(lambda: engagement.cluster.config.token, lambda token: token == "two")
        assert not engagement.closed

        # The last valid kubeconfig stays, after garbage and after a deletion.
        await client.patch(SECRETS, "admin", {"data": {"kubeconfig": "eA=="}}, namespace=namespace)
        await eventually(lambda: caplog.text, re.compile("failed to use .*admin: .*; keeping the engaged").search)
        caplog.clear()
        await client.delete(SECRETS, "admin", namespace=namespace)
        await eventually(lambda: caplog.text, lambda text: "admin is missing; keeping the engaged cluster" in text)
        await management.secret("controllers", token="three")
        assert clusters.get(management.name).config.token == "two"
        assert not engagement.closed

        # Another Secret of the same identity is an update; another endpoint a new engagement.
        await management.answer(resolvedControllersSecretRef={"name": "controllers", "namespace": namespace})
        await eventually(lambda: engagement.cluster.config.token, lambda token: token == "three")
        moved = "https://127.0.0.1:2"
        reference = {"name": "controllers", "namespace": namespace}
        await management.answer(server=moved, resolvedControllersSecretRef=reference)
        await eventually(lambda: clusters.get(management.name).config.server, lambda server: server == moved)
        assert engagement.closed

        (engagement,) = clusters.engagements()
        await client.patch(REGISTRATIONS, management.name, {"spec": {"controlPlaneRef": {"name": "y"}}})
        await management.answer(generation=2, ready=False)
        await eventually(clusters.names, lambda names: names == [])
        # The cluster is no longer offered at once; its engagement closes afterwards.
        await eventually(lambda: engagement.closed)

        await management.answer(generation=2, resolvedControllersSecretRef=reference)
        await eventually(clusters.names, lambda names: names == [management.name])
        await client.delete(REGISTRATIONS, management.name)
        await eventually(clusters.names, lambda names: names == [])


@pytest.mark.integration
async def test_mismatched_client_key_keeps_previous_kubeconfig(
    client, namespace, management, eventually, caplog, telling, tools
):
    one, other = (tools.Authority().issue("somebody") for _ in range(2))
    async with telling(selected(client, namespace)) as clusters:
        await management.secret("admin", pair=(one.certificate, one.key))
        await management.register()
        await management.answer()
        (engagement,) = await eventually(clusters.engagements)
        for key in (other.key, b"garbage"):
            caplog.clear()
            await management.secret("admin", pair=(one.certificate, key))
            told = f"failed to use the kubeconfig in Secret {namespace}/admin: "
            await eventually(lambda told=told: told in caplog.text)
            assert "; keeping the previous one" in caplog.text
            assert "client-certificate-data and client-key-data" in caplog.text
            assert not [line for line in key.decode().splitlines() if line in caplog.text]
        await management.secret("admin", pair=(one.certificate, other.key), **{"sa.key": "renewed"})
        await eventually(lambda: engagement.cluster.credentials.get("sa.key"), lambda key: key == b"renewed")
        assert engagement.cluster.config.client_key == one.key
        assert not engagement.closed
        await management.answer(controllers={"profile": "Full"})
        await eventually(lambda: clusters.get(management.name).attributes[PROFILE_ATTRIBUTE], lambda is_: is_ == "Full")
        (engagement,) = clusters.engagements()
        assert engagement.cluster.config.client_key == one.key
        await management.secret("admin", pair=(other.certificate, other.key))
        await eventually(lambda: engagement.cluster.config.client_key == other.key)
        assert not engagement.closed


@pytest.mark.integration
async def test_second_run_keeps_engagements_of_registrations(client, namespace, management, eventually):
    await management.secret("admin")
    await management.register()
    await management.answer(services=["Scheduler"])
    provider = RegistrationProvider(client, services=SERVICES, label_selector=f"test={namespace}")
    clusters = Clusters()
    first = asyncio.create_task(provider.run(clusters))
    await eventually(provider.has_synced)
    assert clusters.names() == []
    await management.answer(services=["Scheduler", "Controllers"])
    await eventually(clusters.names, lambda names: names == [management.name])
    (engagement,) = clusters.engagements()
    first.cancel()
    await asyncio.wait([first])
    assert not engagement.closed

    second = asyncio.create_task(provider.run(clusters))
    await management.secret("admin", token="two")
    await eventually(lambda: engagement.cluster.config.token, lambda token: token == "two")
    assert clusters.engagements() == [engagement]
    await client.delete(REGISTRATIONS, management.name)
    await eventually(clusters.names, lambda names: names == [])
    second.cancel()
    await asyncio.wait([second])
    await clusters.aclose()


@pytest.mark.integration
async def test_second_run_removes_clusters_deleted_since_the_first(client, namespace, management, eventually):
    await management.secret("admin")
    await management.register()
    await management.answer()
    selector = f"test={namespace}"
    clusters = Clusters()
    first = asyncio.create_task(RegistrationProvider(client, services=SERVICES, label_selector=selector).run(clusters))
    await eventually(clusters.names)
    first.cancel()
    await asyncio.wait([first])
    await client.delete(REGISTRATIONS, management.name)
    second = asyncio.create_task(RegistrationProvider(client, services=SERVICES, label_selector=selector).run(clusters))
    await eventually(clusters.names, lambda names: names == [])
    second.cancel()
    await asyncio.wait([second])
    await clusters.aclose()


@pytest.mark.integration
async def test_provider_works_with_the_permissions_of_mcm(
    api_server, client, namespace, management, eventually, caplog, telling
):
    """The identity of mcm reads registrations, and a Secret once it is granted by name."""
    from kplane.provider import ClusterConfig
    from kplane.provider.client.resources import ROLE_BINDINGS, ROLES

    await management.secret("admin")
    await management.register()
    await management.answer()
    async with (
        Client(ClusterConfig.load(api_server.mcm_kubeconfig), field_manager="kplane") as limited,
        telling(selected(limited, namespace)) as clusters,
    ):
        await eventually(lambda: caplog.text, lambda text: "failed to watch secrets admin" in text)
        assert clusters.names() == []
        rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["admin"], "verbs": ["get", "watch"]}]
        await client.create(ROLES, {"metadata": {"name": "mcm"}, "rules": rules}, namespace=namespace)
        binding = {
            "metadata": {"name": "mcm"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "mcm"},
            "subjects": [{"kind": "ServiceAccount", "name": "mcm", "namespace": "kplane-system"}],
        }
        await client.create(ROLE_BINDINGS, binding, namespace=namespace)
        await eventually(clusters.names, lambda names: names == [management.name])


def desired(*, metadata=None, **fields):
    registration = {
        "metadata": {"name": "a", "generation": 1, **(metadata or {})},
        "spec": {"services": ["controllers"]},
        "status": status("ns", **fields),
    }
    return read_desired(registration, services=frozenset({"controllers"}))


def test_read_wish_reads_endpoint_secret_and_attributes():
    controllers = {"name": "controllers", "namespace": "ns"}
    assert (desired().endpoint, desired().namespace, desired().secret) == ("https://127.0.0.1:1", "ns", "admin")
    assert desired(resolvedControllersSecretRef=controllers).secret == "controllers"
    assert desired(services=["CONTROLLERS"]) == desired()
    identities = [
        desired(),
        desired(controlPlaneUID="2"),
        desired(controllers=None),
        desired(services=["Controllers", "Scheduler"]),
        desired(version="v1.36.3"),
        desired(version="v1.37.0"),
    ]
    assert len({str(found.attributes) for found in identities}) == len(identities)
    # A patch release keeps the identity of the cluster: no controller restarts.
    assert desired(version="v1.36.4") == desired(version="v1.36.3-vendor.1")
    assert desired(version={"no": "text"}).attributes["version"] == ""


def test_read_wish_returns_none_when_not_ready():
    assert read_desired(None, services=frozenset({"controllers"})) is None
    assert desired(ready=False) is None
    assert desired(ready="true") is None
    assert desired(services=["Scheduler"]) is None
    assert desired(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "generation": 2}) is None


def test_read_wish_returns_unanswered_for_incomplete_status():
    unanswered = desired(metadata={"generation": 2})
    assert unanswered is not None
    assert desired(metadata={"generation": 2}, ready=False) is unanswered
    assert desired(resolvedEndpoint=None) is unanswered
    assert desired(resolvedKubeconfigSecretRef={"name": "x"}) is unanswered


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(status("ns"))), json_values), json_values)
def test_read_wish_accepts_any_status(fields, spec):
    registration = {"metadata": {"name": "a", "generation": 1}, "spec": spec, "status": {**status("ns"), **fields}}
    for each in (registration, {**registration, "status": fields.get("ready")}):
        desired = read_desired(each, services=frozenset({"controllers"}))
        # A cluster always has an endpoint, a namespace and a Secret, as strings.
        for text in (desired.endpoint, desired.namespace, desired.secret) if hasattr(desired, "endpoint") else ():
            assert isinstance(text, str) and text  # noqa: PT018
