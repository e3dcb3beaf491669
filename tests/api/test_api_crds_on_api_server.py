"""The CRDs on a real kube-apiserver: validation, defaults, columns and explanations."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import ValidationError

from kplane.api import ControlPlaneEndpoint
from kplane.api.generate import KINDS
from kplane.provider import Client, ClusterConfig, Invalid, NotFound, Resource

if TYPE_CHECKING:
    from kplane.embedded.handle import Handle
    from kplane.embedded.kubectl import Kubectl

pytestmark = pytest.mark.integration

KIND_IDS = [kind.resource.kind for kind in KINDS]
RESOURCES = {
    resource.kind: Resource(
        f"{resource.group}/{resource.version}", resource.kind, resource.plural, resource.scope == "Namespaced"
    )
    for resource in (kind.resource for kind in KINDS)
}
CONTROL_PLANES = RESOURCES["ControlPlane"]


@pytest.fixture
def kube(api_server: Handle) -> Kubectl:
    return api_server.kubectl


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "controlplane.kplane.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


Create = Callable[..., Awaitable[dict[str, Any]]]
Patch = Callable[..., Awaitable[None]]


@pytest.fixture
async def client(api_server: Handle) -> AsyncIterator[Client]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield client


@pytest.fixture
def create(client: Client) -> Create:
    """`await create(body, dry_run=True)` returns the object of the API server, which refuses unknown fields."""

    async def post(body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        created: dict[str, Any] = await client.request("POST", f"{RESOURCES[body['kind']].path()}{query}", body=body)
        return created

    return post


@pytest.fixture
def patch(client: Client) -> Patch:
    """`await patch(name, body, subresource="")` merges the body into a control plane."""

    async def merge(name: str, body: dict[str, Any], **options: str) -> None:
        await client.patch(CONTROL_PLANES, name, body, **options)

    return merge


@pytest.fixture
async def control_plane(client: Client, create: Create) -> AsyncIterator[str]:
    """Name of a control plane `spec: {virtual: {clusterPath: crd-test-path}}` that exists during the test."""
    name = "crd-test"
    await create(manifest("ControlPlane", name, {"virtual": {"clusterPath": "crd-test-path"}}))
    yield name
    with contextlib.suppress(NotFound):
        await client.delete(CONTROL_PLANES, name)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_crd_is_established_with_accepted_names(kind: Any, kube: Kubectl) -> None:
    crd = await kube.get("crd", kind.resource.crd_name)
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert conditions == {"Established": "True", "NamesAccepted": "True"}


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_api_server_stores_crd_as_generated(kind: Any, kube: Kubectl) -> None:
    """If the API server pruned or defaulted fields, the manifest would never equal the installed CRD."""
    from kplane.embedded.manifests import crd_manifests

    (generated,) = [item for item in crd_manifests() if item["metadata"]["name"] == kind.resource.crd_name]
    stored = await kube.get("crd", kind.resource.crd_name)
    assert stored["spec"]["versions"] == generated["spec"]["versions"]


def _is_in(given: Any, stored: Any) -> bool:
    """Return whether `stored` contains all given values, apart from added defaults."""
    if isinstance(given, dict):
        return all(name in stored and _is_in(value, stored[name]) for name, value in given.items())
    if isinstance(given, list):
        return len(given) == len(stored) and all(map(_is_in, given, stored))
    return bool(given == stored)


async def test_api_server_accepts_manifest(accepted: dict[str, Any], create: Create) -> None:
    created = await create(accepted, dry_run=True)
    for field, value in accepted["spec"].items():
        match value:
            case dict():
                assert _is_in(value, created["spec"][field])
            case _:
                assert created["spec"][field] == value


async def test_api_server_refuses_manifest_and_names_field(refusal: Any, create: Create) -> None:
    with pytest.raises(Invalid) as caught:
        await create(refusal.manifest, dry_run=True)
    message = str(caught.value)
    assert f"{refusal.field}:" in message
    assert refusal.says in message


@pytest.mark.parametrize(
    "url",
    [
        "https://a",
        "https://A.example.ORG:443/",
        "https://a.example.org:65535/x//y",
        "https://10.0.0.1:6443/k8s/clusters/c-m-1:x,y=z",
        "https://[::1]:6443/x",
        "https://a.example.org/.well-known/..x",
        "https://a.example.org/" + "x" * 2026,
    ],
    ids=lambda url: url[:40],
)
async def test_endpoint_url_is_accepted_by_models_and_api_server(url: str, create: Create) -> None:
    body = manifest("ControlPlaneEndpoint", "crd-test", {"endpoint": url})
    assert ControlPlaneEndpoint.model_validate(body).spec.endpoint == url
    assert (await create(body, dry_run=True))["spec"] == {"endpoint": url}


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example.org:65536",
        "https://a.example.org:",
        "https://a.example.org:08",
        "https://-a.example.org",
        "https://a_b.example.org",
        "https://a.example.org.",
        "https://::1",
        "https://a.example.org/%2e%2e/x",
        "https://a.example.org/a b",
        "https://a.example.org/.",
        "https://a.example.org/./x",
        "https://a.example.org/..",
        "https://a.example.org\n",
        "https://ü.example.org",
        "HTTPS://a.example.org",
        " https://a.example.org",
        "https:/a.example.org",
        "https://a.example.org/" + "x" * 2027,
    ],
    ids=lambda url: url[:40],
)
async def test_endpoint_url_is_refused_by_models_and_api_server(url: str, create: Create) -> None:
    body = manifest("ControlPlaneEndpoint", "crd-test", {"endpoint": url})
    with pytest.raises(ValidationError, match=r"spec\.endpoint"):
        ControlPlaneEndpoint.model_validate(body)
    with pytest.raises(Invalid, match=r"spec\.endpoint:"):
        await create(body, dry_run=True)


async def test_control_plane_defaults_to_mode_virtual(create: Create) -> None:
    created = await create(manifest("ControlPlane", "crd-defaults", {}), dry_run=True)
    assert created["spec"] == {"mode": "Virtual"}


async def test_class_has_auth_defaults(create: Create) -> None:
    created = await create(manifest("ControlPlaneClass", "crd-defaults", {}), dry_run=True)
    assert created["spec"] == {
        "auth": {"model": "token", "defaultRole": "cluster-admin", "lifetime": "72h"},
    }


async def test_class_with_partial_auth_gets_remaining_defaults(create: Create) -> None:
    body = manifest("ControlPlaneClass", "crd-defaults", {"auth": {"defaultRole": "view"}})
    created = await create(body, dry_run=True)
    assert created["spec"]["auth"] == {"model": "token", "defaultRole": "view", "lifetime": "72h"}


async def test_mode_of_adopted_control_plane_cannot_be_changed(control_plane: str, patch: Patch) -> None:
    await patch(control_plane, {"spec": {"mode": "Dedicated", "virtual": None}})
    await patch(control_plane, {"spec": {"endpointRef": {"name": "elsewhere"}}})
    with pytest.raises(Invalid, match=r"spec\.mode: .*kplane does not have the data: create a second ControlPlane"):
        await patch(control_plane, {"spec": {"mode": "Virtual"}})


@pytest.mark.parametrize(
    "virtual", [{"clusterPath": "another"}, {"clusterPath": None}, None], ids=["changed", "removed", "settings-removed"]
)
async def test_cluster_path_in_use_cannot_be_changed(virtual: Any, control_plane: str, patch: Patch) -> None:
    await patch(control_plane, {"status": {"clusterPath": "crd-test-path"}}, subresource="status")
    with pytest.raises(Invalid, match=r"spec\.virtual\.clusterPath: .*create a second ControlPlane"):
        await patch(control_plane, {"spec": {"virtual": virtual}})


@pytest.mark.parametrize(
    ("name", "virtual"),
    [("root", {}), ("clusters", {}), ("a.b", {}), ("x" * 64, {}), ("fits", {"clusterPath": "root"})],
)
async def test_unservable_cluster_path_is_refused_at_creation(name: str, virtual: Any, create: Create) -> None:
    with pytest.raises(Invalid, match=r"spec\.virtual\.clusterPath.*choose another name"):
        await create(manifest("ControlPlane", name, {"virtual": virtual}), dry_run=True)
    await create(manifest("ControlPlane", name, {"virtual": {"clusterPath": "fits"}}), dry_run=True)
    await create(manifest("ControlPlane", name, {"mode": "Dedicated"}), dry_run=True)


async def test_unservable_cluster_path_is_refused_in_an_edit(
    control_plane: str, client: Client, create: Create, patch: Patch
) -> None:
    with pytest.raises(Invalid, match="are reserved"):
        await patch(control_plane, {"spec": {"virtual": {"clusterPath": "clusters"}}})
    await create(manifest("ControlPlane", "crd.test", {"mode": "Dedicated"}))
    try:
        with pytest.raises(Invalid, match="must have no dot"):
            await patch("crd.test", {"spec": {"mode": "Virtual"}})
    finally:
        await client.delete(CONTROL_PLANES, "crd.test")


async def test_existing_control_plane_with_unservable_name_can_be_deleted(
    client: Client, create: Create, patch: Patch, eventually: Callable[..., Any]
) -> None:
    definition = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False)
    name = "controlplanes.controlplane.kplane.dev"
    present = await client.get(definition, name)
    schema = "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"
    validations = present["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    await client.json_patch(definition, name, [{"op": "remove", "path": schema}])
    try:
        body = manifest("ControlPlane", "crd.former", {})
        body["metadata"]["finalizers"] = ["kplane.dev/test"]
        await eventually(lambda: create(body))  # the API server applies the change of the CRD with a delay
    finally:
        await client.json_patch(definition, name, [{"op": "add", "path": schema, "value": validations}])

    async def is_refused() -> bool:
        try:
            await create(manifest("ControlPlane", "crd.other", {}), dry_run=True)
        except Invalid:
            return True
        return False

    await eventually(is_refused)
    await patch("crd.former", {"status": {"phase": "Failed"}}, subresource="status")
    await patch("crd.former", {"metadata": {"labels": {"a": "b"}}})
    await client.delete(CONTROL_PLANES, "crd.former")
    await patch("crd.former", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await client.get(CONTROL_PLANES, "crd.former")


async def test_control_plane_with_data_under_its_name_gets_no_other_path(control_plane: str, patch: Patch) -> None:
    await patch(control_plane, {"spec": {"virtual": None}})
    await patch(control_plane, {"status": {"clusterPath": control_plane}}, subresource="status")
    with pytest.raises(Invalid, match=r"spec\.virtual\.clusterPath: .*create a second ControlPlane"):
        await patch(control_plane, {"spec": {"virtual": {"clusterPath": "another"}}})
    await patch(control_plane, {"spec": {"virtual": {"clusterPath": control_plane}}})


async def test_unused_cluster_path_can_be_changed(control_plane: str, patch: Patch, kube: Kubectl) -> None:
    await patch(control_plane, {"spec": {"virtual": {"clusterPath": "another"}}})
    stored = await kube.get("controlplane", control_plane)
    assert stored["spec"]["virtual"] == {"clusterPath": "another"}


async def test_other_fields_can_be_changed_while_cluster_path_is_in_use(
    control_plane: str, patch: Patch, kube: Kubectl
) -> None:
    await patch(control_plane, {"status": {"clusterPath": "crd-test-path"}}, subresource="status")
    await patch(control_plane, {"spec": {"deletionPolicy": "Destroy"}, "metadata": {"labels": {"a": "b"}}})
    await patch(control_plane, {"status": {"phase": "Ready"}}, subresource="status")
    stored = await kube.get("controlplane", control_plane)
    assert (stored["spec"]["deletionPolicy"], stored["status"]["phase"]) == ("Destroy", "Ready")


async def test_cluster_path_that_differs_from_status_permits_deletion(
    control_plane: str, patch: Patch, kube: Kubectl
) -> None:
    await patch(control_plane, {"metadata": {"finalizers": ["kplane.dev/crd-test"]}})
    await patch(control_plane, {"status": {"clusterPath": "before-the-edit"}}, subresource="status")
    await kube.run("delete", "controlplane", control_plane, "--wait=false")
    await patch(control_plane, {"status": {"phase": "Terminating"}}, subresource="status")
    await patch(control_plane, {"metadata": {"finalizers": None}})
    assert control_plane not in await kube.names("controlplane")


async def test_patches_of_spec_and_status_are_separate(control_plane: str, patch: Patch, kube: Kubectl) -> None:
    await patch(control_plane, {"status": {"phase": "Ready"}})
    await patch(control_plane, {"spec": {"deletionPolicy": "Destroy"}}, subresource="status")
    stored = await kube.get("controlplane", control_plane)
    assert "status" not in stored
    assert "deletionPolicy" not in stored["spec"]


async def test_two_field_managers_each_own_a_condition(control_plane: str, kube: Kubectl) -> None:
    for type_ in ("Ready", "Supported"):
        condition = {
            "type": type_,
            "status": "True",
            "reason": "Because",
            "message": "",
            "lastTransitionTime": "2026-05-04T12:00:00Z",
        }
        body = manifest("ControlPlane", control_plane, {}) | {"status": {"conditions": [condition]}}
        await kube.run(
            "apply", "--server-side", f"--field-manager={type_}", "--subresource=status", "-f", "-",
            stdin=yaml.safe_dump(body),
        )  # fmt: skip
    stored = await kube.get("controlplane", control_plane)
    assert [condition["type"] for condition in stored["status"]["conditions"]] == ["Ready", "Supported"]


@pytest.mark.parametrize(
    ("kind", "columns", "wide"),
    [
        (
            "cp",
            ["NAME", "MODE", "PHASE", "READY", "AGE"],
            {"CLASS", "VERSION", "ENDPOINT", "ASLEEP", "NEXT WAKE", "MIGRATION", "COPIED %"},
        ),
        ("cpclass", ["NAME", "DELETION POLICY", "PROFILE", "CONTROL PLANES", "READY", "AGE"], set()),
        ("cpe", ["NAME", "READY", "REACHABLE", "AGE"], {"ENDPOINT", "EXTERNAL"}),
        ("cpr", ["NAME", "CONTROL PLANE", "READY", "RUNNING", "AGE"], {"SERVICES", "ENDPOINT"}),
        (
            "cpsnap",
            ["NAME", "CONTROL PLANE", "PHASE", "KEYS", "SIZE", "AGE"],
            {"VERSION", "REVISION", "LOCATION"},
        ),
    ],
)
async def test_kubectl_get_prints_columns(
    kind: str, columns: list[str], wide: set[str], create: Create, kube: Kubectl
) -> None:
    named = {"controlPlaneRef": {"name": "x"}}
    specs: dict[str, dict[str, Any]] = {"ControlPlaneRegistration": named, "ControlPlaneSnapshot": named}
    (full,) = [k.resource.kind for k in KINDS if kind in k.resource.short_names]
    await create(manifest(full, "crd-columns", specs.get(full, {})))
    try:
        narrow = await kube.run("get", kind, "crd-columns")
        all_columns = await kube.run("get", kind, "crd-columns", "-o", "wide")
    finally:
        await kube.run("delete", kind, "crd-columns")
    assert _header(narrow) == columns
    assert set(_header(all_columns)) == {*columns, *wide}


def _header(table: str) -> list[str]:
    return [column.strip() for column in table.splitlines()[0].split("   ") if column.strip()]


async def test_kubectl_get_prints_mode_phase_and_readiness(control_plane: str, patch: Patch, kube: Kubectl) -> None:
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-05-04T12:00:00Z",
    }
    await patch(control_plane, {"status": {"phase": "Pending", "conditions": [ready]}}, subresource="status")
    _, row = (await kube.run("get", "cp", control_plane)).splitlines()
    assert row.split()[:4] == [control_plane, "Virtual", "Pending", "False"]


async def test_category_kplane_lists_control_planes(control_plane: str, kube: Kubectl) -> None:
    output = await kube.run("get", "kplane", "-o", "name")
    assert f"controlplane.controlplane.kplane.dev/{control_plane}" in output.splitlines()


async def test_control_planes_are_selected_by_class_field(control_plane: str, patch: Patch, kube: Kubectl) -> None:
    await patch(control_plane, {"spec": {"classRef": {"name": "crd-test-class"}}})
    assert await kube.names("cp", "--field-selector=spec.classRef.name=crd-test-class") == [control_plane]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("controlplane.spec.virtual.clusterPath", "`root` and `clusters` are reserved"),
        ("controlplaneclass.spec.controllers.profile", "Nodeless adds the controllers of workloads"),
        ("controlplaneclass.spec.auth.defaultRole", "admin and edit can make themselves cluster-admin"),
        ("controlplaneendpoint.spec.credentialsSecretRef", "The Secret whose key `kubeconfig`"),
        ("controlplaneregistration.spec.services", "Lower case is accepted, and duplicates are ignored"),
    ],
)
async def test_kubectl_explain_prints_field_description(path: str, says: str, kube: Kubectl) -> None:
    explained = await kube.run("explain", path)
    assert says in " ".join(explained.split())
