"""Starts the chosen backend for tests, and removes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from kplane.binaries.progress import print_line
from kplane.embedded.errors import KubectlFailed
from kplane.testing import programs
from kplane.testing.choice import Choice, is_true
from kplane.testing.cluster import Cluster
from kplane.testing.command import run
from kplane.testing.errors import KindFailed, KindTimedOut
from kplane.testing.kind import Kind
from kplane.testing.run import exclusive, write_private

__all__ = ["current_context", "remove", "safe_path", "start"]

_CREATED = "created"
_KUBECONFIG = "kubeconfig"
_KIND_KUBECONFIG = "kubeconfig.kind"
_KUBECTL_SECONDS = 30.0


@contextlib.contextmanager
def start(choice: Choice, *, shared: Path, operators: bool, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Yield the cluster of a choice other than `none`.

    The backend `local` starts a cluster for this process, which ends with the context. With `operators`, the cluster
    runs kplane's operators. The backends `kind` and `existing` share a cluster among all processes with the same
    directory `shared`; call `remove` after the last process. Raises `EmbeddedError` and
    `kplane.binaries.errors.BinariesError`.
    """
    match choice.backend:
        case "local":
            with _local(choice, operators=operators) as cluster:
                yield cluster
        case "kind":
            kind = _kind(choice, environment=environment)
            yield _shared(choice, shared=shared, environment=environment, kind=kind)
        case _:
            yield _shared(choice, shared=shared, environment=environment, kind=None)


def remove(choice: Choice, *, shared: Path, environment: Mapping[str, str]) -> None:
    """Delete the kind cluster that was created for this directory, if it exists. Raises `KindFailed`.

    With KIND_KEEP, a complete cluster stays.
    """
    kept = is_true("KIND_KEEP", environment=environment) and (shared / _KUBECONFIG).exists()
    if (shared / _CREATED).exists() and not kept:
        _kind(choice, environment=environment).delete(kubeconfig=shared / _KIND_KUBECONFIG)


@contextlib.contextmanager
def _local(choice: Choice, *, operators: bool) -> Iterator[Cluster]:
    from kplane.binaries.programs import resolve
    from kplane.embedded.daemon import start_cluster

    with contextlib.ExitStack() as running:
        with safe_path():
            handle = running.enter_context(start_cluster(resolve(), operators=operators, manifests=operators))
        yield _cluster(
            choice,
            kubeconfig=handle.admin_kubeconfig,
            context=current_context(handle.kubectl_program, kubeconfig=handle.admin_kubeconfig),
            kubectl=handle.kubectl_program,
            directory=handle.directory,
        )


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Prevent `python -m` from importing packages of pytest's working directory instead of kplane's packages."""
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _shared(choice: Choice, *, shared: Path, environment: Mapping[str, str], kind: Kind | None) -> Cluster:
    kubectl = programs.kubectl(environment=environment, report=print_line)
    kubeconfig = shared / _KUBECONFIG
    with exclusive(shared):
        if not kubeconfig.exists():
            content = (
                _existing_kubeconfig(kubectl, context=choice.target, environment=environment)
                if kind is None
                else _kind_kubeconfig(kind, choice=choice, shared=shared, environment=environment)
            )
            write_private(kubeconfig, content=content)
    context = choice.target if kind is None else kind.context
    return _cluster(choice, kubeconfig=kubeconfig, context=context, kubectl=kubectl, kind=kind)


def _kind(choice: Choice, *, environment: Mapping[str, str]) -> Kind:
    return Kind(program=programs.kind(environment=environment, report=print_line), cluster=choice.target)


def _kind_kubeconfig(kind: Kind, *, choice: Choice, shared: Path, environment: Mapping[str, str]) -> str:
    created = shared / _CREATED
    if created.exists():
        # Another process of this run was interrupted during the creation, so the cluster is not usable.
        kind.delete(kubeconfig=shared / _KIND_KUBECONFIG)
        created.unlink()
    # Check again: a cluster that the user created meanwhile is used, and not deleted.
    if not choice.exists and not kind.exists():
        # Mark before the creation, so that `remove` deletes the cluster if this process is interrupted.
        created.touch()
        try:
            kind.create(
                image=environment.get("KIND_NODE_IMAGE"),
                config=environment.get("KIND_CONFIG"),
                kubeconfig=shared / _KIND_KUBECONFIG,
            )
        except KindTimedOut:
            raise  # the partial cluster stays marked for deletion
        except KindFailed:
            created.unlink()
            raise
    return kind.kubeconfig()


def _existing_kubeconfig(kubectl: Path, *, context: str, environment: Mapping[str, str]) -> str:
    # A copy with a single context: later changes of the user's kubeconfig cannot lead a test to another cluster.
    args = ("config", "view", "--raw", "--flatten", "--minify", f"--context={context}")
    return run(
        kubectl,
        args,
        title=" ".join(("kubectl", *args)),
        failure=KubectlFailed,
        timeout_seconds=_KUBECTL_SECONDS,
        environment=dict(environment),
    ).output


def _cluster(
    choice: Choice,
    *,
    kubeconfig: Path,
    context: str,
    kubectl: Path,
    directory: Path | None = None,
    kind: Kind | None = None,
) -> Cluster:
    return Cluster(
        name=choice.backend,
        reason=choice.reason,
        kubeconfig=kubeconfig,
        context=context,
        capabilities=choice.capabilities,
        kubectl_program=kubectl,
        directory=directory,
        kind=kind,
    )


def current_context(kubectl: Path, *, kubeconfig: Path) -> str:
    """Return the current context of a kubeconfig. Raises `KubectlFailed`."""
    args = ("config", "current-context", f"--kubeconfig={kubeconfig}")
    title = " ".join(("kubectl", *args))
    return run(kubectl, args, title=title, failure=KubectlFailed, timeout_seconds=_KUBECTL_SECONDS).output.strip()
