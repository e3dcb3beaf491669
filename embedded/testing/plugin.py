"""The pytest plugin: options, the marker `needs`, the fixture `k8s`, and the logs of a failed test.

pytest loads it wherever kplane is installed, for tests without a cluster too: what takes time to import is imported
where it is used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from embedded.testing.choice import CAPABILITIES, OPTIONS, Choice, choose
from embedded.testing.errors import Misconfigured

if TYPE_CHECKING:
    from embedded.testing.cluster import Cluster

__all__ = [
    "k8s",
    "k8s_operators",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_sessionstart",
    "pytest_unconfigure",
]

_LOG_NAMESPACES = "k8s_log_namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """What all processes of one test run share."""

    choice: Choice
    directory: Path
    mine: bool
    """False in a worker of xdist, which was told all this."""


_SESSION = pytest.StashKey[_Session]()
_CLUSTER = pytest.StashKey["Cluster"]()
_TOLD = pytest.StashKey[bool]()
_WRONG = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("k8s", "a Kubernetes cluster for tests")
    group.addoption(
        "--k8s",
        choices=OPTIONS,
        default="auto",
        help="what runs the cluster: kind, local (embedded, without nodes), existing (by the current context), none; "
        "auto takes what the environment names, else local (default: %(default)s)",
    )
    group.addoption("--k8s-required", action="store_true", help="end with an error where no cluster can be had")
    group.addoption("--k8s-report-dir", metavar="DIR", help="keep the cluster's logs of each failed test there")
    parser.addini(
        _LOG_NAMESPACES,
        "namespaces whose pods' logs are gathered where a test fails; patterns with *",
        type="args",
        default=["kplane-system", "kplane-cp-*"],
    )


def pytest_configure(config: pytest.Config) -> None:
    known = ", ".join(CAPABILITIES)
    config.addinivalue_line("markers", f"needs(*capabilities): skipped where the cluster lacks one of {known}")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    choice = _session(config).choice
    if choice.backend == "none" and config.getoption("--k8s-required"):
        raise pytest.UsageError(f"--k8s-required, and there is no cluster for the tests: {choice.reason}")


def pytest_report_header(config: pytest.Config) -> str:
    return f"k8s: {_session(config).choice.summary}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist what was chosen: it does not choose again."""
    session = _session(node.config)
    node.workerinput["k8s"] = {"choice": session.choice.dump(), "directory": str(session.directory)}


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_SESSION, None)
    if session is None or not session.mine:
        return
    try:
        if session.choice.backend == "kind":
            from embedded.testing.backends import remove

            remove(session.choice, shared=session.directory, environment=os.environ)
    finally:
        shutil.rmtree(session.directory, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    session = _session(config)
    choice = session.choice
    for item in items:
        try:
            needs = _needs(item)
        except Misconfigured as error:
            if session.mine:
                raise pytest.UsageError(str(error)) from error
            # A worker of xdist that ends here says nothing but that it crashed: have the test say it.
            item.stash[_WRONG] = str(error)
            continue
        if "k8s" in getattr(item, "fixturenames", ()):
            needs.add("api")
        if missing := needs - choice.capabilities:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(sorted(missing))}; k8s: {choice.summary}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (wrong := item.stash.get(_WRONG, None)) is not None:
        raise pytest.UsageError(wrong)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    used = "k8s" in getattr(item, "fixturenames", ())
    if report.failed and used and cluster is not None and not item.stash.get(_TOLD, False):
        item.stash[_TOLD] = True
        report.sections += _gather(cluster, item)
    return report


@pytest.fixture(scope="session")
def k8s_operators() -> bool:
    """Override it in a conftest with True to have the backend `local` run kplane's operators, and install its CRDs."""
    return False


@pytest.fixture(scope="session")
def k8s(pytestconfig: pytest.Config, k8s_operators: bool) -> Iterator[Cluster]:
    """A Kubernetes cluster: `k8s.kubectl("get", "pods")`, `k8s.kubeconfig`, `k8s.capabilities`; see docs/testing.md."""
    session = _session(pytestconfig)
    if session.choice.backend == "none":
        pytest.skip(f"k8s: {session.choice.summary}")
    from embedded.testing.backends import start

    with start(session.choice, shared=session.directory, operators=k8s_operators, environment=os.environ) as cluster:
        pytestconfig.stash[_CLUSTER] = cluster
        yield cluster
        del pytestconfig.stash[_CLUSTER]


def _session(config: pytest.Config) -> _Session:
    session = config.stash.get(_SESSION, None)
    if session is None:
        told = getattr(config, "workerinput", {}).get("k8s")
        session = _first_session(config) if told is None else _told_session(told)
        config.stash[_SESSION] = session
    return session


def _first_session(config: pytest.Config) -> _Session:
    from embedded.testing.probes import Machine

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    machine = Machine(environment=os.environ, report=reporter.write_line if reporter else lambda _: None)
    try:
        choice = choose(config.getoption("--k8s"), environment=os.environ, probes=machine)
    except Misconfigured as error:
        raise pytest.UsageError(str(error)) from error
    return _Session(choice=choice, directory=Path(tempfile.mkdtemp(prefix="k8s-test-")), mine=True)


def _told_session(told: dict[str, Any]) -> _Session:
    return _Session(choice=Choice.load(told["choice"]), directory=Path(told["directory"]), mine=False)


def _needs(item: pytest.Item) -> set[str]:
    needs: set[str] = set()
    for mark in item.iter_markers("needs"):
        unknown = [repr(each) for each in mark.args if each not in tuple(CAPABILITIES)]
        if unknown or mark.kwargs or not mark.args:
            wrong = f"{', '.join(unknown)} is no capability" if unknown else "it takes the names of capabilities"
            known = "; ".join(f"{name}: {meaning}" for name, meaning in CAPABILITIES.items())
            raise Misconfigured(f"{item.nodeid}: the marker `needs`: {wrong}. Known are {known}.")
        needs.update(mark.args)
    return needs


def _gather(cluster: Cluster, item: pytest.Item) -> list[tuple[str, str]]:
    """Write the logs into the directory for reports, if there is one, and give the ends of those that tell most."""
    from embedded.testing.logs import collect, directory_name, ends

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
