"""Reads kubeconfigs from text, from files, and from the files that kubectl uses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kplane.provider.errors import KubeconfigError

__all__ = ["kubeconfig_paths", "merged_kubeconfig", "parse_kubeconfig", "read_content", "read_document"]

# Enough for 40 clusters with certificates, or 400 contexts. The event loop parses foreign kubeconfigs, in 0.1 s.
_MOST_BYTES: Final = 256 * 1024
_MOST_NODES: Final = 10_000
_MOST_BYTES_OF_FILE: Final = 16 * 1024**2
_FILES: Final = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}
"""Fields of a kubeconfig that name files."""


def kubeconfig_paths(environment: Mapping[str, str]) -> list[Path]:
    """Return the kubeconfig paths of kubectl: the files of KUBECONFIG, else `~/.kube/config`."""
    listed = [Path(path) for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    return listed or [Path.home() / ".kube" / "config"]


def merged_kubeconfig(paths: Iterable[Path]) -> dict[str, Any]:
    """Merge kubeconfigs as kubectl does: the first entry of a name and the first current-context count.

    Paths in a file are relative to its directory. Raises KubeconfigError if a file cannot be read.
    """
    merged: dict[str, Any] = {section: [] for section in ("clusters", "contexts", "users")}
    for path in paths:
        try:
            document = read_document(path)
        except OSError as error:
            raise KubeconfigError(f"cannot read kubeconfig {path}: {error.strerror}") from error
        if document.get("current-context"):
            merged.setdefault("current-context", document["current-context"])
        for section, entries in merged.items():
            if isinstance(entries, list) and isinstance(document.get(section), list):
                entries += [_absolute(entry, path.absolute().parent) for entry in document[section]]
    return merged


def _absolute(entry: Any, directory: Path) -> Any:
    """Return an entry of a kubeconfig with absolute paths."""
    if not isinstance(entry, Mapping):
        return entry
    absolute = dict(entry)
    for kind, fields in _FILES.items():
        section = entry.get(kind)
        if not isinstance(section, Mapping):
            continue
        absolute[kind] = dict(section)
        for name in fields:
            if isinstance(section.get(name), str) and section[name]:
                absolute[kind][name] = str(directory / section[name])
        plugin = section.get("exec")
        if isinstance(plugin, Mapping) and "/" in str(plugin.get("command", "")):
            absolute[kind]["exec"] = {**plugin, "command": str(directory / plugin["command"])}
    return absolute


def read_document(path: Path) -> Mapping[str, Any]:
    """Read a kubeconfig file, without the files it names. Raises OSError and KubeconfigError."""
    return parse_kubeconfig(read_content(path), most_bytes=_MOST_BYTES_OF_FILE, most_nodes=None)


def read_content(path: Path) -> bytes:
    """Read a kubeconfig file up to one byte above the limit, so that the parser notices an excess. Raises OSError."""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES_OF_FILE + 1)


def parse_kubeconfig(
    source: str | bytes, *, most_bytes: int = _MOST_BYTES, most_nodes: int | None = _MOST_NODES
) -> Mapping[str, Any]:
    """Read the text of a kubeconfig. Raises KubeconfigError."""
    if len(source) > most_bytes:
        raise KubeconfigError(
            f"the kubeconfig has more than {most_bytes // 1024} KiB; keep only the contexts that are needed"
        )
    # Imported on first use: programs in pods read no kubeconfig, and need no YAML parser.
    from kplane.provider.access.documents import DocumentError, read_yaml

    try:
        document = read_yaml(source, most_nodes=most_nodes)
    except DocumentError as error:
        raise KubeconfigError(f"the kubeconfig {error}") from error
    if not isinstance(document, Mapping):
        raise KubeconfigError("the kubeconfig is empty or no YAML mapping")
    return document
