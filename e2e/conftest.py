"""Fixtures of the suite: the installation, platforms that clean up, and shared tenants."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.installation import Helm, document_images, images, require_unused
from e2e.kplane_gateway import Gateway, as_pods, as_processes
from e2e.kubectl import Kubectl
from e2e.nodes import Nodes, docker
from e2e.platform import Platform
from e2e.tenant import Tenant

_TEST_SECONDS: Final = 600
_LAST: Final = (
    "test_gateway.py",
    "test_gateway_nodes.py",
    "test_migration.py",
    "test_uninstall.py",
    "test_documents.py",
    "test_document_routes.py",
)
_RUN: Final = secrets.token_hex(2)
_NUMBERS: Final = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a timeout, which excludes its fixtures. Run the tests that change or uninstall kplane last."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))
    items.sort(key=lambda item: _LAST.index(item.path.name) + 1 if item.path.name in _LAST else 0)


@pytest.fixture(scope="session")
def k8s_operators() -> bool:
    """Start both operators on the backend `local`."""
    return True


@pytest.fixture(scope="session")
def kubectl(k8s: Any) -> Kubectl:
    """Kubectl as administrator of the management cluster."""
    return Kubectl(str(k8s.kubectl_program), k8s.kubeconfig, k8s.context)


@pytest.fixture(scope="session")
def helm(kubectl: Kubectl) -> Helm:
    """The real helm, on the cluster of the backend."""
    return Helm.on(kubectl)


@pytest.fixture(scope="session")
def installation(k8s: Any, kubectl: Kubectl, request: pytest.FixtureRequest) -> None:
    """Install kplane, and wait until its kinds are served."""
    if "pods" in k8s.capabilities:
        require_unused(kubectl)
        helm: Helm = request.getfixturevalue("helm")
        if k8s.name == "existing" and helm.status() is not None:
            pytest.fail("failed to install kplane: the cluster has it already; use another cluster")
        if "images" in k8s.capabilities:
            k8s.load_images(*images())
        helm.install()
    kubectl("wait", "--for=condition=Established", "crd/controlplanes.controlplane.kplane.dev", "--timeout=120s")


def _slug(test: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower())
    return f"{words[:16].strip('-')}-{_RUN}{next(_NUMBERS)}"


def _platform(kubectl: Kubectl, *, prefix: str, directory: Path) -> Iterator[Platform]:
    platform = Platform(kubectl, prefix=prefix, directory=directory)
    try:
        yield platform
    finally:
        platform.clean_up()


@pytest.fixture
def platform(
    installation: None, kubectl: Kubectl, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Platform]:
    """A platform for a single test. Deletes the objects that the test created, and waits until they are gone."""
    yield from _platform(kubectl, prefix=_slug(request.node.name), directory=tmp_path)


@pytest.fixture(scope="module")
def module_platform(
    installation: None, kubectl: Kubectl, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A platform for the tests of a file."""
    name = _slug(request.path.stem)
    yield from _platform(kubectl, prefix=name, directory=tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def session_platform(
    installation: None, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A platform for all tests."""
    yield from _platform(kubectl, prefix=_slug("e2e"), directory=tmp_path_factory.mktemp("e2e"))


@pytest.fixture(scope="session")
def tenants(session_platform: Platform) -> tuple[Tenant, Tenant]:
    """Two control planes of a class, with controllers. Tests may create objects in them, but not change their spec."""
    platform = session_platform
    standard = platform.name("standard")
    platform.create(
        "ControlPlaneClass",
        standard,
        deletionPolicy="Destroy",
        modesAllowed=["Virtual", "Dedicated"],
        auth={"defaultRole": "cluster-admin"},
        controllers={"profile": "Nodeless"},
        defaultServices=["Controllers"],
    )
    acme, globex = platform.name("acme"), platform.name("globex")
    for name in (acme, globex):
        platform.create("ControlPlane", name, classRef={"name": standard}, mode="Virtual")
    for name in (acme, globex):
        platform.becomes_ready("ControlPlane", name)
    return platform.tenant(acme), platform.tenant(globex)


@pytest.fixture
def acme(tenants: tuple[Tenant, Tenant]) -> Tenant:
    """The first shared tenant."""
    return tenants[0]


@pytest.fixture
def globex(tenants: tuple[Tenant, Tenant]) -> Tenant:
    """The second shared tenant."""
    return tenants[1]


@pytest.fixture(scope="module")
def unregistered(module_platform: Platform) -> str:
    """A class without default registrations. Its control planes are deleted with their data."""
    name = module_platform.name("unregistered")
    module_platform.create("ControlPlaneClass", name, deletionPolicy="Destroy")
    return name


@pytest.fixture(scope="module")
def gateway(k8s: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """kplane's gateway: the gateway of the chart, or of a second embedded cluster."""
    if "pods" not in k8s.capabilities:
        running = as_processes()
    else:
        request.getfixturevalue("installation")
        kubectl, helm = request.getfixturevalue("kubectl"), request.getfixturevalue("helm")
        running = as_pods(k8s, kubectl=kubectl, helm=helm, directory=tmp_path_factory.mktemp("gateway"))
    with running as instance:
        yield instance


@pytest.fixture(scope="module")
def gateway_platform(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform for the tests of a file, behind the gateway."""
    platform = Platform(gateway.kubectl, prefix="behind", directory=tmp_path_factory.mktemp("behind"))
    try:
        yield platform
    finally:
        platform.clean_up()


@pytest.fixture(scope="session")
def reader_environment(
    k8s: Any, kubectl: Kubectl, helm: Helm, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """The environment of a reader's shell: kubectl, helm and kind on PATH, and the cluster as current context."""
    programs = tmp_path_factory.mktemp("bin")
    for name, program in (("kubectl", kubectl.program), ("helm", helm.program), ("kind", k8s.kind.program)):
        (programs / name).symlink_to(program)
    # A reader's shell lacks the variables of the make process that runs the suite.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "IMAGE_TAG")}
    return {
        **environment,
        "KUBECONFIG": str(kubectl.kubeconfig),
        "KIND_CLUSTER_NAME": k8s.kind.cluster,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture(scope="module")
def nodes(kubectl: Kubectl) -> Nodes:
    """The nodes of a kind cluster."""
    return Nodes(sorted(kubectl.names("nodes")))


@pytest.fixture(scope="module")
def released(k8s: Any, kubectl: Kubectl, helm: Helm) -> Iterator[None]:
    """Images with the names in the documents, as if they came from a registry, on a cluster without kplane.

    At the end, each name on this machine refers to its former image again, or is removed.
    """
    require_unused(kubectl)
    assert helm.status() is None, "failed to prepare the cluster: kplane is installed; run test_uninstall.py first"
    with contextlib.ExitStack() as afterwards:
        for name, image in document_images().items():
            if name == image:
                continue
            before = docker("image", "ls", "--no-trunc", "--quiet", name).strip()
            docker("tag", image, name)
            afterwards.callback(docker, *(("tag", before, name) if before else ("rmi", "--no-prune", name)))
        k8s.load_images(*dict.fromkeys((*images(), *document_images())))
        yield
