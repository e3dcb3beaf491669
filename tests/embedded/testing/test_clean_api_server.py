"""The fixture `clean_api_server`: objects of a test do not affect the next test."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kplane.binaries.programs import Binaries
from kplane.provider import Client, ClusterConfig
from kplane.testing.clean.client import CleanServer
from kplane.workloads import find_processes

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SETTINGS = ("K8S_ALLOWED_CONTEXTS", "KIND_CLUSTER", "KIND_NODE_IMAGE", "KUBECONFIG", "USE_EXISTING_CLUSTER")

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
WIDGET = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: small, namespace: shop}}"
POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: none}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}
  validations: [{expression: "false", message: no secrets here}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: none}
spec: {policyName: none, validationActions: [Deny]}
"""
HOOK = """
apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata: {name: closed}
webhooks:
  - name: closed.example.com
    admissionReviewVersions: [v1]
    sideEffects: None
    clientConfig: {url: "https://127.0.0.1:1/"}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]
"""


@pytest.fixture(scope="module")
def server(binaries: Binaries) -> Iterator[CleanServer]:
    with CleanServer(programs=binaries.directories) as server:
        server.prepare()
        yield server


@pytest.fixture
def kubectl(server: CleanServer, binaries: Binaries) -> Callable[..., str]:
    server.clean()

    def run(*args: str, stdin: str | None = None, refused: str | None = None) -> str:
        command = [str(binaries.path("kubectl")), f"--kubeconfig={server.kubeconfig}", *args]
        command.insert(1, f"--cache-dir={server.directory}/cache")
        process = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert (process.returncode == 0) == (refused is None), process.stderr
        assert refused is None or refused in process.stderr
        return process.stdout

    return run


LISTS = (
    "/api/v1/namespaces",
    "/api/v1/configmaps",
    "/api/v1/services",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
)


def _everything(server: CleanServer) -> dict[str, Any]:
    """Return the objects and API groups that every reset restores. Lists come from watch caches, as for clients."""

    async def read() -> dict[str, Any]:
        async with Client(ClusterConfig.load(server.kubeconfig), field_manager="kplane") as client:
            objects: dict[str, Any] = {}
            for path in LISTS:
                items = (await client.request("GET", path, params={"resourceVersion": "0"}))["items"]
                objects[path] = sorted((item["metadata"]["name"], item["metadata"]["uid"]) for item in items)
            groups = (await client.request("GET", "/apis"))["groups"]
            return objects | {"discovery": sorted(group["name"] for group in groups)}

    return asyncio.run(read())


@pytest.mark.slow
def test_clean_restores_initial_state_in_each_of_five_rounds(server: CleanServer, kubectl: Callable[..., str]) -> None:
    initial_state = _everything(server)
    for _ in range(5):
        kubectl("create", "namespace", "shop")
        for number in range(3):
            kubectl("create", "configmap", f"c{number}", "-n=shop")
        kubectl("apply", "-f", "-", stdin=CRD)
        kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=30s")
        kubectl("apply", "-f", "-", stdin=WIDGET)
        kubectl("create", "clusterrole", "extra", "--verb=*", "--resource=secrets")
        kubectl("create", "clusterrolebinding", "extra", "--clusterrole=extra", "--user=jane")
        kubectl("delete", "clusterrole", "view")
        kubectl("delete", "namespace", "default", refused="forbidden")
        kubectl("delete", "configmap", "-n=kube-system", "extension-apiserver-authentication")
        assert kubectl("auth", "can-i", "get", "secrets", "--as=jane").strip() == "yes"
        result = server.clean()
        assert result["changes"] > 10
        assert _everything(server) == initial_state
        kubectl("auth", "can-i", "get", "secrets", "--as=jane", refused="")
        kubectl("get", "--raw", "/apis/example.com/v1", refused="NotFound")
        kubectl("create", "configmap", "c0", "-n=shop", refused="not found")


def test_clean_deletes_leases_events_and_namespaces_so_named(server: CleanServer, kubectl: Callable[..., str]) -> None:
    for namespace in ("leases", "events"):
        kubectl("create", "namespace", namespace)
        kubectl("create", "configmap", "left", f"--namespace={namespace}")
        metadata = {"name": "left", "namespace": namespace}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": {"namespace": namespace}}
        kubectl("create", "-f", "-", stdin=json.dumps(lease))
        kubectl("create", "-f", "-", stdin=json.dumps(event))
    system_leases = kubectl("get", "leases", "-n=kube-system", "-o=name")
    server.clean()
    for kind in ("leases", "events", "configmaps"):
        for namespace in ("leases", "events"):
            assert kubectl("get", kind, f"--namespace={namespace}", "-o=name") == ""
    assert system_leases == kubectl("get", "leases", "-n=kube-system", "-o=name") != ""


@pytest.mark.parametrize(
    "left", [POLICY, HOOK % "ValidatingWebhookConfiguration", HOOK % "MutatingWebhookConfiguration"]
)
def test_clean_removes_policies_and_webhooks_that_refuse_objects(
    server: CleanServer, kubectl: Callable[..., str], eventually: Callable[..., Any], left: str
) -> None:
    kubectl("apply", "-f", "-", stdin=left)
    for attempt in range(200):
        try:
            kubectl("create", "secret", "generic", f"s{attempt}")
        except AssertionError:
            break
    else:
        raise AssertionError("it refused nothing")
    server.clean()
    kubectl("create", "secret", "generic", "s0")


def test_clean_restores_a_terminating_system_namespace(server: CleanServer, kubectl: Callable[..., str]) -> None:
    # Without the namespace controller, the namespace stays Terminating.
    kubectl("delete", "namespace", "kube-node-lease", "--wait=false")
    kubectl("create", "configmap", "c", "-n=kube-node-lease", refused="being terminated")
    server.clean()
    kubectl("create", "configmap", "c", "-n=kube-node-lease")


def test_created_pod_is_pending(kubectl: Callable[..., str]) -> None:
    kubectl("run", "one", "--image=none")
    assert kubectl("get", "pod", "one", "-o=jsonpath={.status.phase}") == "Pending"


@pytest.fixture
def pytester(pytester: pytest.Pytester, binaries: Binaries, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(binaries.kubernetes.parents[2]))
    return pytester


def test_fixture_cleans_server_and_applies_manifests_per_test(pytester: pytest.Pytester) -> None:
    pytester.makefile(".yaml", crd=CRD)
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def clean_api_server_manifests(pytestconfig):
            return [pytestconfig.rootpath / "crd.yaml"]
    """)
    pytester.makepyfile(f"""
        import sys
        import pytest

        @pytest.mark.parametrize("round", range(5))
        def test_leaves(clean_api_server, round, pytestconfig):
            assert "shop" not in clean_api_server.kubectl("get", "namespaces")
            clean_api_server.kubectl("create", "namespace", "shop")
            assert clean_api_server.kubectl("get", "widgets", "-A") == ""
            clean_api_server.kubectl("create", "-f", "-", stdin={WIDGET!r})
            if round == 3:
                clean_api_server.kubectl("delete", "crd", "widgets.example.com")
            assert "grpc" not in sys.modules
            (pytestconfig.rootpath / "directory").write_text(str(clean_api_server.directory))

        async def test_in_an_event_loop_too(clean_api_server):
            assert "shop" not in clean_api_server.kubectl("get", "namespaces")

        def test_shows_logs(clean_api_server):
            assert False, "to see the logs"
    """)
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    outcome = pytester.runpytest_subprocess("--k8s=local")
    outcome.assert_outcomes(passed=6, failed=1)
    outcome.stdout.fnmatch_lines(["*to see the logs*", "*- runtime/kube-apiserver.log -*"])
    directory = Path((pytester.path / "directory").read_text())
    assert not directory.exists()
    assert find_processes(directory) == []
