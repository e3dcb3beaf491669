"""Fixtures of management clusters with real programs. Each test process has a cluster of each kind.

The clusters are separate processes, so tests in any event loop can use them through kubeconfigs. The imports are inside
the fixtures, because each run of pytest loads this module, even a run of unit tests.
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
    """Directories of the real Kubernetes and etcd programs. Fails if they cannot be obtained."""
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
    """A management cluster without operators: etcd, kube-apiserver, kube-controller-manager, kplane's CRDs and RBAC."""
    from kplane.embedded.daemon import start_cluster

    with start_cluster(binaries, operators=False) as handle:
        pytestconfig.stash.setdefault(_CLUSTERS, {})["api_server"] = handle
        yield handle


@pytest.fixture
def kubectl(binaries: Binaries) -> Callable[..., Awaitable[str]]:
    """`await kubectl(kubeconfig, *args, stdin=None)` returns the output, or raises `KubectlFailed`."""
    from kplane.embedded.kubectl import Kubectl

    async def run(kubeconfig: Path, *args: str, stdin: str | None = None) -> str:
        return await Kubectl(program=binaries.path("kubectl"), kubeconfig=kubeconfig).run(*args, stdin=stdin)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the cluster's logs to the report of a failed test."""
    report = yield
    used = set(getattr(item, "fixturenames", ()))
    if report.failed:
        from kplane.embedded.daemon import tail

        for fixture, handle in item.config.stash.get(_CLUSTERS, {}).items():
            if fixture in used:
                report.sections += [(f"{fixture}: {log}", tail(log)) for log in handle.logs]
    return report
