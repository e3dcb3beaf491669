"""Endpoints of API servers that kplane runs, and of adopted API servers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from e2e.api_server import api_server_as_pod, api_server_as_processes
from e2e.kubectl import Kubectl
from e2e.platform import Platform
from e2e.shared_address import SharedAddress, as_pod, as_process
from e2e.tenant import Tenant
from e2e.waiting import eventually


def test_operator_creates_endpoint_of_control_plane_it_runs(acme: Tenant, session_platform: Platform) -> None:
    """Without `endpointRef`, the operator creates and probes the ControlPlaneEndpoint. The control plane owns it."""
    control_plane = session_platform.get("ControlPlane", acme.name)
    session_platform.becomes_ready("ControlPlaneEndpoint", acme.name)
    endpoint = session_platform.get("ControlPlaneEndpoint", acme.name)
    assert [entry["uid"] for entry in endpoint["metadata"]["ownerReferences"]] == [control_plane["metadata"]["uid"]]
    urls = {entry["type"]: entry["url"] for entry in control_plane["status"]["endpoints"]}
    assert endpoint["status"]["endpoint"] == urls["Internal"]
    assert endpoint["status"]["externalEndpoint"] == urls["External"]


@dataclass(frozen=True, slots=True)
class Host:
    """Gives access to an API server that control planes adopt."""

    tenant: Tenant
    """Access as administrator, with credentials that the user made."""
    token: str
    """Token of the administrator."""
    internal: str
    external: str
    ca: bytes

    def kubeconfig_at(self, url: str, *, ca: bytes) -> str:
        """Return the administrator's kubeconfig with another address."""
        return _kubeconfig(url, ca=ca, token=self.token)


def _kubeconfig(url: str, *, ca: bytes, token: str) -> str:
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "host", "cluster": cluster}],
        "users": [{"name": "owner", "user": {"token": token}}],
        "contexts": [{"name": "host", "context": {"cluster": "host", "user": "owner"}}],
        "current-context": "host",
    }
    return str(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def host(module_platform: Platform, k8s: Any) -> Iterator[Host]:
    """An API server with objects, which kplane does not run. kplane refuses to adopt API servers that it runs."""
    platform, name = module_platform, module_platform.name("host")
    run = api_server_as_pod if "pods" in k8s.capabilities else api_server_as_processes
    with run(platform) as server:
        kubeconfig = _kubeconfig(server.external, ca=server.ca, token=server.token)
        tenant = Tenant(
            name, Kubectl(platform.kubectl.program, platform.private_file("owner", content=kubeconfig.encode()))
        )
        tenant.answers()
        eventually("namespace default", lambda: tenant.kubectl.find("namespace", "default"))
        tenant.keep("owner", "somebody else")
        yield Host(tenant, server.token, server.internal, server.external, server.ca)
        # Before the end of the API server, which must serve the deletion.
        platform.clean_up()


def _serves(platform: Platform, name: str, *, host: Host) -> None:
    """Run controllers for an adopted control plane, use it, and check that its deletion leaves the host unchanged."""
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    platform.becomes_ready("ControlPlane", name)
    platform.resolves(name)
    adopted = platform.tenant(name)
    assert adopted.kept("owner") == "somebody else"
    adopted.deploy("web")
    adopted.wait_pods("web")

    platform.delete("ControlPlaneRegistration", name)
    platform.delete("ControlPlane", name)
    assert host.tenant.kept("owner") == "somebody else"
    assert len(host.tenant.pods("web")) == 2
    # The host refuses the credentials that kplane issued.
    adopted.wait_shut_out()
    host.tenant.kubectl("delete", "deployment,replicaset,pods", "--all", "-n", "default", "--force", "--grace-period=0")


@pytest.mark.smoke("adopted (an API server that you run)")
def test_existing_api_server_is_adopted_and_keeps_its_data(platform: Platform, host: Host) -> None:
    """With `endpointRef` kplane publishes kubeconfigs for an adopted API server, and runs its controllers.

    The data stay, even with deletionPolicy Destroy.
    """
    name = platform.name("adopted")
    kubeconfig = host.kubeconfig_at(host.internal, ca=host.ca)
    credentials = platform.create_secret(name, allow="endpoint", kubeconfig=kubeconfig)
    platform.create(
        "ControlPlaneEndpoint",
        name,
        endpoint=host.internal,
        externalEndpoint=host.external,
        credentialsSecretRef=credentials,
    )
    platform.create("ControlPlane", name, mode="Dedicated", endpointRef={"name": name}, deletionPolicy="Destroy")
    _serves(platform, name, host=host)


@pytest.fixture
def shared(platform: Platform, host: Host, k8s: Any) -> Iterator[SharedAddress]:
    """A user's gateway that serves the host's API below the path of one tenant."""
    run = as_pod if "pods" in k8s.capabilities else as_process
    path = f"/clusters/{platform.name('routed')}/control-plane"
    with run(platform, path=path, backend=host.internal, ca=host.ca) as address:
        yield address
        # Before the end of the gateway, which must serve the deletion.
        platform.clean_up()


def test_control_plane_at_shared_address_is_adopted_by_path(
    platform: Platform, host: Host, shared: SharedAddress
) -> None:
    """All requests work through a gateway that routes by path."""
    name = platform.name("routed")
    kubeconfig = host.kubeconfig_at(shared.internal, ca=shared.ca)
    credentials = platform.create_secret(name, allow="endpoint", kubeconfig=kubeconfig)
    platform.create(
        "ControlPlaneEndpoint",
        name,
        endpoint=shared.internal,
        externalEndpoint=shared.external,
        credentialsSecretRef=credentials,
    )
    platform.create("ControlPlane", name, mode="Virtual", endpointRef={"name": name})
    status = platform.becomes_ready("ControlPlane", name)
    assert status["endpoint"] == f"{shared.internal}/clusters/{name}/control-plane"
    _serves(platform, name, host=host)
