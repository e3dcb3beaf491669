"""Kubeconfigs of control planes with an exec credential or for a command, and the way to the management cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kplane.binaries.cache import Cache, cache_root
from kplane.binaries.upstreams import KUBERNETES, this_platform
from kplane.cli.errors import Refused
from kplane.cli.exec_plugin import asked_context, is_plugin, plugin_entry, plugin_of
from kplane.provider.access.kubeconfigs import kubeconfig_paths, read_document

__all__ = [
    "Management",
    "current_context",
    "management",
    "run_with",
    "to_text",
    "with_exec_credential",
]


def with_exec_credential(
    published: str, *, name: str, uid: str | None, context: str | None, internal: bool
) -> dict[str, Any]:
    """Return a published kubeconfig as context `kplane-NAME`, with `kplane credential` in place of its credentials.

    `uid` is the uid of the control plane. `context` is the context of the management cluster, or None for the current
    one.
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
    entry_name = f"kplane-{name}"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": entry_name, "cluster": cluster}],
        "users": [{"name": entry_name, "user": {"exec": plugin}}],
        "contexts": [{"name": entry_name, "context": {"cluster": entry_name, "user": entry_name}}],
        "current-context": entry_name,
    }


def _current_context() -> str:
    if (context := current_context()) is None:
        raise Refused("your kubeconfig has no current context; choose one by --context")
    return context


def current_context() -> str | None:
    """Return the context that kubectl would use; None if there is none."""
    for path in kubeconfig_paths(os.environ):
        if path.is_file() and (context := read_document(path).get("current-context")):
            return str(context)
    return None


@dataclass(frozen=True, slots=True)
class Management:
    """Address of a management cluster."""

    context: str | None = None
    """Context of the kubeconfig; None for the current context."""
    kubeconfig: str | None = None
    """Value of KUBECONFIG; None for the value of this process."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment for programs that connect to the management cluster."""
        return os.environ if self.kubeconfig is None else {**os.environ, "KUBECONFIG": self.kubeconfig}


def management(chosen: str | None) -> Management:
    """Return the management cluster for a context, or for the current context if `chosen` is None.

    If the current context belongs to a control plane, the result is the management cluster that issues its credentials.
    Otherwise the result is the current context itself. The kubeconfig of `kplane connect` has no other context, so
    `chosen` is a context of the management cluster's kubeconfig in that case.
    """
    documents = [read_document(path) for path in kubeconfig_paths(os.environ) if path.is_file()]
    present = {entry.get("name") for document in documents for entry in document.get("contexts") or []}
    plugin = _current_plugin(documents)
    if plugin is None or (chosen is not None and chosen in present):
        return Management(chosen)
    return Management(chosen or asked_context(plugin), _kubeconfig_of(plugin))


def _current_plugin(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the exec plugin of the current context, if it is `kplane credential`."""
    current = current_context()
    users = [
        entry["context"].get("user")
        for document in documents
        for entry in document.get("contexts") or []
        if entry.get("name") == current
    ]
    for document in documents:
        for entry in document.get("users") or []:
            plugin = plugin_of(entry)
            if entry.get("name") in users[:1] and is_plugin(plugin):
                return plugin
    return None


def _kubeconfig_of(plugin: Mapping[str, Any]) -> str | None:
    """Return the KUBECONFIG of a plugin, if it differs from that of this process, and one of its files exists."""
    value = next(
        (variable["value"] for variable in plugin.get("env") or [] if variable.get("name") == "KUBECONFIG"), None
    )
    if value is None:
        return None
    paths = kubeconfig_paths({"KUBECONFIG": value})
    is_other = paths != kubeconfig_paths(os.environ) and any(path.is_file() for path in paths)
    return str(value) if is_other else None


def to_text(document: Mapping[str, Any]) -> str:
    """Return a kubeconfig as YAML."""
    text: str = yaml.safe_dump(dict(document), sort_keys=False)
    return text


def run_with(document: str, command: Sequence[str]) -> int:
    """Run a command, or the user's shell, with a kubeconfig in a private file. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="kplane-") as directory:
        path = Path(directory) / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(document)
        arguments = list(command) or [os.environ.get("SHELL", "/bin/sh")]
        environment = {**os.environ, **_with_kubectl(), "KUBECONFIG": str(path)}
        # Ctrl-C also reaches the command, which decides how it ends.
        process = subprocess.Popen(arguments, env=environment)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _with_kubectl() -> dict[str, str]:
    """Return a PATH with the kubectl that kplane has downloaded, if the machine has no other kubectl."""
    obtained = Cache(cache_root(os.environ)).directory(KUBERNETES, platform=this_platform())
    if shutil.which("kubectl") is not None or not (obtained / "kubectl").is_file():
        return {}
    return {"PATH": f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{obtained}"}
