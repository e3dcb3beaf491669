"""The pytest plugin: options, the marker `k8s_needs`, fixtures `k8s` and `clean_api_server`, logs of a failed test.

pytest loads the plugin if kplane is installed, even for tests without a cluster. The plugin chooses a backend only if
a collected test needs a cluster, or if an option requests a cluster. Slow imports are inside functions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kplane.testing.choice import CAPABILITIES, OPTIONS, Choice, choose
from kplane.testing.errors import Misconfigured
from kplane.testing.run import Run

if TYPE_CHECKING:
    from kplane.testing.clean.fixture import CleanServers
    from kplane.testing.cluster import Cluster

__all__ = [
    "clean_api_server",
    "clean_api_server_manifests",
    "k8s",
    "k8s_operators",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_report_collectionfinish",
    "pytest_runtest_makereport",
    "pytest_sessionstart",
    "pytest_unconfigure",
    "pytest_xdist_node_collection_finished",
]

_LOG_NAMESPACES = "k8s_log_namespaces"
_MARKER = "k8s_needs"

_RUN = pytest.StashKey[Run]()
_CLUSTER = pytest.StashKey["Cluster"]()
_CLEAN: pytest.StashKey[CleanServers] = pytest.StashKey()
_SHOWN = pytest.StashKey[bool]()
_TOLD = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("k8s", "a Kubernetes cluster for tests")
    group.addoption(
        "--k8s",
        choices=OPTIONS,
        help="backend of the cluster: kind, local (embedded, without nodes), existing (the current context) or none; "
        "auto (default) reads the environment and falls back to local",
    )
    group.addoption("--k8s-required", action="store_true", help="fail if no cluster is available")
    group.addoption("--k8s-report-dir", metavar="DIR", help="keep the cluster's logs of each failed test in DIR")
    parser.addini(
        _LOG_NAMESPACES,
        "namespaces whose pods' logs are collected for a failed test; patterns with *",
        type="args",
        default=["kplane-system", "kplane-cp-*"],
    )


def pytest_configure(config: pytest.Config) -> None:
    capabilities = ", ".join(CAPABILITIES)
    config.addinivalue_line("markers", f"{_MARKER}(*capabilities): skip if the cluster lacks one of {capabilities}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Choose now if an option requests a cluster, so that a failure comes before the collection."""
    config = session.config
    asked = config.getoption("--k8s") is not None or config.getoption("--k8s-required")
    if not asked or _is_worker(config) or config.option.collectonly:
        return
    try:
        choice = _choice(config)
    except Misconfigured as error:
        raise pytest.UsageError(str(error)) from error
    if choice.backend == "none" and config.getoption("--k8s-required"):
        raise pytest.UsageError(f"--k8s-required: failed to find a cluster for the tests: {choice.reason}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the directory of the run to an xdist worker."""
    node.workerinput["k8s"] = str(_run(node.config).directory)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    try:
        _skip_unmet(session.items, config=config)
    except Misconfigured as error:
        if not _is_worker(config):
            raise pytest.UsageError(str(error)) from error
        # An error in an xdist worker looks like a crash, so the controller reports it and ends the run.
        _run(config).refuse(error)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    choice = None if _is_worker(config) else _chosen(config)
    return [] if choice is None else [f"k8s: {choice.summary}"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """Report the choice of an xdist worker, or end the run. Tests start after all workers have collected."""
    config: pytest.Config = node.config
    try:
        choice = _chosen(config)
    except Misconfigured as error:
        raise pytest.UsageError(str(error)) from error
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if choice is not None and reporter is not None and not config.stash.get(_SHOWN, False):
        config.stash[_SHOWN] = True
        reporter.ensure_newline()
        reporter.write_line(f"k8s: {choice.summary}")


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is None or not run.mine:
        return
    try:
        choice = _chosen(config)
        if choice is not None and choice.backend == "kind":
            from kplane.testing.backends import remove

            remove(choice, shared=run.directory, environment=os.environ)
    except Misconfigured:
        pass  # No test has run, and pytest has reported the error.
    finally:
        shutil.rmtree(run.directory, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and not item.stash.get(_TOLD, False):
        for cluster in _used(item):
            item.stash[_TOLD] = True
            report.sections += _gather(cluster, item)
    return report


@pytest.fixture(scope="session")
def k8s_operators() -> bool:
    """Override with True to let the backend `local` install kplane's CRDs and run its operators."""
    return False


@pytest.fixture(scope="session")
def k8s(pytestconfig: pytest.Config, k8s_operators: bool) -> Iterator[Cluster]:
    """A Kubernetes cluster: `k8s.kubectl("get", "pods")`, `k8s.kubeconfig`, `k8s.capabilities`; see docs/testing."""
    try:
        choice = _choice(pytestconfig)
    except Misconfigured as error:
        pytest.fail(str(error), pytrace=False)
    if choice.backend == "none":
        pytest.skip(f"k8s: {choice.summary}")
    from kplane.testing.backends import start

    shared = _run(pytestconfig).directory
    with start(choice, shared=shared, operators=k8s_operators, environment=os.environ) as cluster:
        pytestconfig.stash[_CLUSTER] = cluster
        yield cluster
        del pytestconfig.stash[_CLUSTER]


@pytest.fixture(scope="session")
def clean_api_server_manifests() -> Sequence[Path]:
    """Override with manifests, for example CRDs, that kubectl applies first and that exist in each test."""
    return ()


@pytest.fixture
def clean_api_server(pytestconfig: pytest.Config, clean_api_server_manifests: Sequence[Path]) -> Cluster:
    """A Kubernetes API without objects of earlier tests, used as `k8s`. No controllers run. See docs/testing."""
    try:
        choice = _choice(pytestconfig)
    except Misconfigured as error:
        pytest.fail(str(error), pytrace=False)
    if "reset" not in choice.capabilities:
        pytest.skip(f"needs reset; k8s: {choice.summary}")
    from kplane.testing.clean.fixture import CleanServers

    servers = pytestconfig.stash.get(_CLEAN, None)
    if servers is None:
        servers = pytestconfig.stash[_CLEAN] = CleanServers(choice)
        pytestconfig.add_cleanup(servers.stop)
    return servers.clean(tuple(clean_api_server_manifests))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _run(config: pytest.Config) -> Run:
    run = config.stash.get(_RUN, None)
    if run is None:
        directory = getattr(config, "workerinput", {}).get("k8s")
        run = config.stash[_RUN] = Run.begin() if directory is None else Run.join(directory)
    return run


def _choice(config: pytest.Config) -> Choice:
    return _run(config).choose(lambda: _decide(config))


def _chosen(config: pytest.Config) -> Choice | None:
    run = config.stash.get(_RUN, None)
    return None if run is None else run.chosen()


def _decide(config: pytest.Config) -> Choice:
    option = config.getoption("--k8s") or "auto"
    from kplane.testing.probes import Machine

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    machine = Machine(environment=os.environ, report=reporter.write_line if reporter else lambda _: None)
    return choose(option, environment=os.environ, probes=machine)


def _skip_unmet(items: list[pytest.Item], *, config: pytest.Config) -> None:
    wanting = [(item, needs) for item in items if (needs := _needs(item))]
    if not wanting or config.option.collectonly:
        return
    choice = _choice(config)
    for item, needs in wanting:
        if missing := needs - choice.capabilities:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(sorted(missing))}; k8s: {choice.summary}"))


def _used(item: pytest.Item) -> list[Cluster]:
    """List the running clusters that a test uses."""
    fixtures = getattr(item, "fixturenames", ())
    cluster = item.config.stash.get(_CLUSTER, None)
    used = [cluster] if "k8s" in fixtures and cluster is not None else []
    servers = item.config.stash.get(_CLEAN, None)
    if "clean_api_server" in fixtures and servers is not None and servers.latest is not None:
        used.append(servers.latest)
    return used


def _needs(item: pytest.Item) -> set[str]:
    fixtures = getattr(item, "fixturenames", ())
    needs = {"api"} if "k8s" in fixtures else set[str]()
    needs |= {"reset"} if "clean_api_server" in fixtures else set()
    for mark in item.iter_markers(_MARKER):
        unknown = [repr(argument) for argument in mark.args if argument not in tuple(CAPABILITIES)]
        if unknown or mark.kwargs or not mark.args:
            problem = f"unknown capability {', '.join(unknown)}" if unknown else "expected names of capabilities"
            capabilities = "; ".join(f"{name}: {meaning}" for name, meaning in CAPABILITIES.items())
            raise Misconfigured(f"{item.nodeid}: failed to read the marker `{_MARKER}`: {problem}; use {capabilities}")
        needs.update(mark.args)
    return needs


def _gather(cluster: Cluster, item: pytest.Item) -> list[tuple[str, str]]:
    """Return the ends of the most useful logs. With --k8s-report-dir, write all logs to that directory."""
    from kplane.testing.logs import collect, directory_name, ends

    reports = item.config.getoption("--k8s-report-dir")
    logs = list(collect(cluster, namespaces=item.config.getini(_LOG_NAMESPACES), whole=reports is not None))
    sections = ends(logs)
    if reports is not None:
        directory = Path(reports, directory_name(item.nodeid))
        for log in logs:
            file = directory / log.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(log.text)
        sections.append(("k8s", f"all logs: {directory}"))
    return sections
