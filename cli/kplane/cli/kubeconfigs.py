"""Kubeconfigs of control planes: with an exec credential, in the user's own file, or for one command."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kplane.binaries.cache import Cache, cache_root
from kplane.binaries.upstreams import KUBERNETES, this_platform
from kplane.cli.errors import Refused
from kplane.cli.exec_plugin import asked_context, is_plugin, plugin_entry, renew_plugin
from kplane.provider.access.kubeconfigs import kubeconfig_paths, read_document

__all__ = [
    "Management",
    "add_context",
    "administrator_context",
    "choose_context",
    "current_context",
    "management",
    "remove_context",
    "renew_plugins",
    "run_with",
    "server_of",
    "to_text",
    "use_context",
    "with_exec_credential",
]

_SECTIONS: Final = ("clusters", "contexts", "users")


def with_exec_credential(
    published: str, *, name: str, uid: str | None, context: str | None, internal: bool
) -> dict[str, Any]:
    """Return a published kubeconfig as context `kplane-NAME`, with `kplane credential` in the place of credentials.

    `uid` is that of the control plane. `context` is that of the management cluster; None for the present current one.
    """
    document = yaml.safe_load(published)
    cluster = document["clusters"][0]["cluster"]
    cluster_of = management(context)
    plugin = plugin_entry(
        name,
        uid=uid,
        internal=internal,
        context=cluster_of.context or _current_context(),
        kubeconfigs=kubeconfig_paths(cluster_of.environment),
    )
    called = f"kplane-{name}"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": called, "cluster": cluster}],
        "users": [{"name": called, "user": {"exec": plugin}}],
        "contexts": [{"name": called, "context": {"cluster": called, "user": called}}],
        "current-context": called,
    }


def _current_context() -> str:
    if (found := current_context()) is None:
        raise Refused("your kubeconfig has no current context; choose one by --context")
    return found


def current_context() -> str | None:
    """Return the context that kubectl would use; None if there is none."""
    for path in kubeconfig_paths(os.environ):
        if path.is_file() and (found := read_document(path).get("current-context")):
            return str(found)
    return None


def server_of(context: str) -> str | None:
    """Return the address of the API server that a context of the user's kubeconfig leads to; None if there is none."""
    path = kubeconfig_paths(os.environ)[0]
    held = read_document(path) if path.is_file() else {}
    clusters = {each["name"]: each["cluster"] for each in held.get("clusters") or []}
    for each in held.get("contexts") or []:
        if each.get("name") == context and (found := clusters.get(each["context"].get("cluster"))) is not None:
            return str(found.get("server"))
    return None


@dataclass(frozen=True, slots=True)
class Management:
    """Leads to a management cluster."""

    context: str | None = None
    """Of the kubeconfig; None for the current one."""
    kubeconfig: str | None = None
    """A value of KUBECONFIG; None for that of this process."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a program that looks there."""
        return os.environ if self.kubeconfig is None else {**os.environ, "KUBECONFIG": self.kubeconfig}


def management(chosen: str | None) -> Management:
    """Find the management cluster: that of the context that was chosen, else what the current one leads to.

    If the current one is that of a control plane, this is where its credentials come from; otherwise it is itself. The
    kubeconfig of `kplane connect` has no other context, so those of the management cluster's kubeconfig count there.
    """
    documents = [read_document(path) for path in kubeconfig_paths(os.environ) if path.is_file()]
    present = {each.get("name") for document in documents for each in document.get("contexts") or []}
    plugin = _current_plugin(documents)
    if plugin is None or (chosen is not None and chosen in present):
        return Management(chosen)
    return Management(chosen or asked_context(plugin), _kubeconfig_of(plugin))


def _current_plugin(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the exec plugin of the current context, if it is `kplane credential`."""
    current = current_context()
    users = [
        each["context"].get("user")
        for document in documents
        for each in document.get("contexts") or []
        if each.get("name") == current
    ]
    for document in documents:
        for each in document.get("users") or []:
            plugin = _plugin(each)
            if each.get("name") in users[:1] and is_plugin(plugin):
                return plugin
    return None


def _kubeconfig_of(plugin: Mapping[str, Any]) -> str | None:
    """Return the KUBECONFIG of a plugin, if it is another one than that of this process, and still there."""
    found = next((each["value"] for each in plugin.get("env") or [] if each.get("name") == "KUBECONFIG"), None)
    if found is None:
        return None
    paths = kubeconfig_paths({"KUBECONFIG": found})
    is_other = paths != kubeconfig_paths(os.environ) and any(path.is_file() for path in paths)
    return str(found) if is_other else None


def to_text(document: Mapping[str, Any]) -> str:
    """Return a kubeconfig as YAML."""
    text: str = yaml.safe_dump(dict(document), sort_keys=False)
    return text


def administrator_context(kubeconfig: Path, *, name: str) -> dict[str, Any]:
    """Return a kubeconfig with one cluster and one user as a context of this name."""
    document = yaml.safe_load(kubeconfig.read_text())
    return {
        "clusters": [{"name": name, "cluster": document["clusters"][0]["cluster"]}],
        "users": [{"name": name, "user": document["users"][0]["user"]}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def add_context(document: Mapping[str, Any]) -> Path:
    """Add a kubeconfig with one context to the user's own, make it the current one, and return the file.

    An entry of the same name is replaced; all others stay as they are.
    """
    return _change({section: list(document[section]) for section in _SECTIONS}, current=document["current-context"])


def use_context(name: str) -> None:
    """Make a context the current one, if the user's kubeconfig has it and no other one is current."""
    path = kubeconfig_paths(os.environ)[0]
    held = read_document(path) if path.is_file() else {}
    if not held.get("current-context") and name in {each.get("name") for each in held.get("contexts") or []}:
        _change({section: [] for section in _SECTIONS}, current=name)


def choose_context(*names: str) -> str:
    """Make the first of these contexts that the user's kubeconfig has the current one, and return its name."""
    path = kubeconfig_paths(os.environ)[0]
    held = read_document(path) if path.is_file() else {}
    present = {each.get("name") for each in held.get("contexts") or []}
    for name in names:
        if name in present:
            _change({section: [] for section in _SECTIONS}, current=name)
            return name
    raise Refused(f"{path} has no context {' or '.join(names)}")


def remove_context(name: str) -> None:
    """Remove a context from the user's kubeconfig, and those whose credentials come from its cluster."""
    path = kubeconfig_paths(os.environ)[0]
    if not path.is_file():
        return
    users = read_document(path).get("users") or []
    served = {each["name"] for each in users if asked_context(_plugin(each)) == name}
    _change({section: [] for section in _SECTIONS}, without=frozenset({name, *served}))


def renew_plugins() -> Path | None:
    """Rewrite the entries of former versions of kplane in the user's kubeconfig. Returns the file if there were any."""
    path = kubeconfig_paths(os.environ)[0]
    users = (read_document(path).get("users") or []) if path.is_file() else []
    if all(renew_plugin(_plugin(each)) is None for each in users):
        return None
    return _change({section: [] for section in _SECTIONS})


def _renewed(user: Mapping[str, Any]) -> Mapping[str, Any]:
    plugin = renew_plugin(_plugin(user))
    return user if plugin is None else {**user, "user": {**user["user"], "exec": plugin}}


def _plugin(user: Mapping[str, Any]) -> Mapping[str, Any]:
    plugin: Mapping[str, Any] = (user.get("user") or {}).get("exec") or {}
    return plugin


def _change(
    entries: Mapping[str, list[dict[str, Any]]], *, current: str | None = None, without: frozenset[str] = frozenset()
) -> Path:
    path = kubeconfig_paths(os.environ)[0]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        held: dict[str, Any] = dict(read_document(path)) if path.is_file() and path.stat().st_size else {}
        held.setdefault("apiVersion", "v1")
        held.setdefault("kind", "Config")
        for section, added in entries.items():
            replaced = without | {each["name"] for each in added}
            former = [each for each in held.get(section) or [] if each.get("name") not in replaced]
            held[section] = [*former, *added]
        held["users"] = [_renewed(each) for each in held["users"]]
        if current is not None:
            held["current-context"] = current
        elif held.get("current-context") in without:
            held["current-context"] = ""
        _replace(path, to_text(held))
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that kubectl takes, too: a file beside the kubeconfig."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise Refused(f"{path} is being changed by another program; if none runs, remove {lock}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Write the file as a whole, readable for its user only. A link stays a link."""
    target = path.resolve()
    descriptor, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def run_with(document: str, command: Sequence[str]) -> int:
    """Run a command, or the user's shell, with a kubeconfig in a private file; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="kplane-") as directory:
        path = Path(directory) / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(document)
        chosen = list(command) or [os.environ.get("SHELL", "/bin/sh")]
        environment = {**os.environ, **_with_kubectl(), "KUBECONFIG": str(path)}
        # Ctrl-C is for the command; it decides how it ends.
        process = subprocess.Popen(chosen, env=environment)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _with_kubectl() -> dict[str, str]:
    """Return a PATH on which kubectl is found: the one that kplane has obtained, on a machine without another."""
    obtained = Cache(cache_root(os.environ)).directory(KUBERNETES, platform=this_platform())
    if shutil.which("kubectl") is not None or not (obtained / "kubectl").is_file():
        return {}
    return {"PATH": f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{obtained}"}
