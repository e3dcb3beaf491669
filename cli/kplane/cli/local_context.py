"""Contexts of `kplane up` in the user's kubeconfig: one for the directory of each management cluster.

The cluster entry names its directory in an extension, as other programs mark their entries. So the contexts of other
directories and of users remain.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kplane.cli.kubeconfigs import current_context, management
from kplane.cli.own_kubeconfig import (
    add_context,
    administrator_context,
    clusters_by_name,
    has_entry,
    remove_context,
    use_context,
)
from kplane.embedded.handle import Handle

__all__ = ["CONTEXT", "enter_local", "leave_local"]

CONTEXT: Final = "kplane"
"""Context of the first management cluster. Further contexts are `kplane.FOLDER`, since `kplane-NAME` is a control
plane.
"""
_EXTENSION: Final = "kplane.dev/up"
_FORMER: Final = "former-context"


def enter_local(handle: Handle) -> tuple[str, Path]:
    """Make the context of a management cluster current. Returns its name and the file that contains it."""
    directory = handle.directory.absolute()
    former = current_context()
    existing = next(
        (name for name, cluster in clusters_by_name().items() if _directory_of(cluster) == str(directory)), None
    )
    name = existing or next(candidate for candidate in _names(directory) if _is_free(candidate, handle))
    gone = None if existing else _directory_of(clusters_by_name().get(name))
    if gone is not None:
        # The contexts of its control planes would request credentials from this management cluster.
        leave_local(Path(gone), server=None)
    document = administrator_context(handle.admin_kubeconfig, name=name)
    extension = {"name": _EXTENSION, "extension": {"directory": str(directory)}}
    document["clusters"][0]["cluster"] = {**document["clusters"][0]["cluster"], "extensions": [extension]}
    # Written first: a crash after the change of the current context would lose the former context.
    if former is not None and former != name:
        (directory / _FORMER).write_text("\n".join(dict.fromkeys([former, *_before(former)])))
    added = add_context(document, replace=True)
    return name, added.path


def leave_local(directory: Path, *, server: str | None) -> None:
    """Remove the context of a directory. The former context becomes current, unless the user has switched already.

    `server` is the address of its API server, by which entries of former versions without a directory are identified.
    """
    for name, cluster in clusters_by_name().items():
        is_own = functools.partial(_is_own, directory=directory.absolute(), server=server if name == CONTEXT else None)
        if is_own(cluster):
            remove_context(name, is_own=is_own)
    remembered = directory / _FORMER
    if remembered.is_file():
        for former in remembered.read_text().splitlines():
            use_context(former)
        remembered.unlink()


def _before(context: str) -> Sequence[str]:
    """Return the contexts that were current before the context of a management cluster, which may end first."""
    # The context of a control plane is removed with its management cluster as well.
    cluster = management(None).context or context
    directory = _directory_of(clusters_by_name().get(cluster))
    note = Path(directory) / _FORMER if directory is not None else None
    return [cluster, *(note.read_text().splitlines() if note is not None and note.is_file() else [])]


def _names(directory: Path) -> itertools.chain[str]:
    own = f"{CONTEXT}.{directory.name}"
    return itertools.chain([CONTEXT, own], (f"{own}-{number}" for number in itertools.count(2)))


def _is_free(name: str, handle: Handle) -> bool:
    """Return whether a management cluster may use the context of this name."""
    if not has_entry(name):
        return True
    cluster = clusters_by_name().get(name) or {}
    directory = _directory_of(cluster)
    if directory is not None:
        # A stopped cluster, for example after a reboot, gets its context back at the next `kplane up`.
        return not Path(directory).exists()
    # Former versions recorded no directory.
    own = administrator_context(handle.admin_kubeconfig, name=name)["clusters"][0]["cluster"]
    authority = "certificate-authority-data"
    return cluster.get(authority) is not None and cluster.get(authority) == own.get(authority)


def _is_own(cluster: Mapping[str, Any], *, directory: Path, server: str | None) -> bool:
    recorded = _directory_of(cluster)
    return recorded == str(directory) or (recorded is None and server is not None and cluster.get("server") == server)


def _directory_of(cluster: Mapping[str, Any] | None) -> str | None:
    for extension in (cluster or {}).get("extensions") or []:
        if (
            isinstance(extension, Mapping)
            and extension.get("name") == _EXTENSION
            and isinstance(extension.get("extension"), Mapping)
        ):
            return str(extension["extension"].get("directory"))
    return None
