"""pytest fixtures: management clusters of real programs, one of each kind for each test process.

The clusters are processes of their own, so that tests in any event loop use them, through kubeconfigs.
Imports are inside the fixtures, because every run of pytest loads this module, those of unit tests too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kplane.binaries.programs import Binaries
    from kplane.embedded.handle import Handle

__all__ = ["api_server", "binaries", "kubectl", "management_cluster", "pytest_runtest_makereport"]

_CLUSTERS = pytest.StashKey[dict[str, "Handle"]]()


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """Where the real Kubernetes and etcd programs are. An error where they cannot be had."""
    from kplane.binaries.programs import resolve

    return resolve()


@pytest.fixture(scope="session")
def management_cluster(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Handle]:
    """A management cluster with both operators."""
    from kplane.embedded.daemon import start_cluster

    with start_cluster(binaries, operators=True) as handle:
        pytestconfig.stash.setdefault(_CLUSTERS, {})["management_cluster"] = handle
        yield handle


@pytest.fixture(scope="session")
def api_server(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Handle]:
    """A management cluster without operators: etcd, kube-apiserver, kube-controller-manager, our CRDs and RBAC."""
    from kplane.embedded.daemon import start_cluster

    with start_cluster(binaries, operators=False) as handle:
        pytestconfig.stash.setdefault(_CLUSTERS, {})["api_server"] = handle
        yield handle


@pytest.fixture
def kubectl(binaries: Binaries) -> Callable[..., Awaitable[str]]:
    """`await kubectl(kubeconfig, *args, stdin=None)`: what kubectl prints; raises `KubectlFailed` on errors."""
    from kplane.embedded.kubectl import Kubectl

    async def run(kubeconfig: Path, *args: str, stdin: str | None = None) -> str:
        return await Kubectl(program=binaries.path("kubectl"), kubeconfig=kubeconfig).run(*args, stdin=stdin)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of a cluster's logs with each failure of a test that uses it."""
    report = yield
    used = set(getattr(item, "fixturenames", ()))
    if report.failed:
        from kplane.embedded.daemon import tail

        for fixture, handle in item.config.stash.get(_CLUSTERS, {}).items():
            if fixture in used:
                report.sections += [(f"{fixture}: {log}", tail(log)) for log in handle.logs]
    return report
