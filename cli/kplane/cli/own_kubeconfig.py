"""Changes of the user's own kubeconfig: all files of KUBECONFIG, as kubectl merges them.

kubectl takes an entry from the first file that contains it. So an existing entry is replaced in its file, and a new
entry is added to the first file. The current context is changed in the file that sets it. An entry that kplane did not
write is never replaced or removed. This is decided for each file by itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kplane.cli.errors import Refused
from kplane.cli.exec_plugin import asked_context, asked_name, asked_uid, is_plugin, plugin_of, renew_plugin
from kplane.cli.kubeconfigs import management, to_text
from kplane.provider.access.kubeconfigs import kubeconfig_paths, read_document

__all__ = [
    "Added",
    "add_context",
    "administrator_context",
    "check_writable",
    "choose_context",
    "clusters_by_name",
    "context_names",
    "has_entry",
    "remove_context",
    "remove_control_plane",
    "renew_plugins",
    "server_of",
    "use_context",
]

_SECTIONS: Final = ("clusters", "contexts", "users")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Added:
    """Changes of the user's kubeconfig."""

    path: Path
    """File that contains the context."""
    former: str | None
    """Context that was current before; None if there was none, or if it was this context."""
    replaced: str | None = None
    """Context of another management cluster that the replaced entry belonged to; None otherwise."""


def administrator_context(kubeconfig: Path, *, name: str) -> Document:
    """Return a kubeconfig with a single cluster and user as a context of this name."""
    document = yaml.safe_load(kubeconfig.read_text())
    return {
        "clusters": [{"name": name, "cluster": document["clusters"][0]["cluster"]}],
        "users": [{"name": name, "user": document["users"][0]["user"]}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def add_context(document: Mapping[str, Any], *, replace: bool = False) -> Added:
    """Add a kubeconfig with a single context to the user's own, and make the context current.

    An entry of the same name is replaced if it requests credentials from kplane, or with `replace`. All other entries
    remain. Raises Refused if an entry of the name was written by another program or by the user.
    """
    name = document["current-context"]
    documents = _read_all()
    present = [
        (path, content) for path, content in documents if any(_find(content, section, name) for section in _SECTIONS)
    ]
    for path, content in present:
        if not replace and not is_plugin(plugin_of(_find(content, "users", name) or {})):
            raise Refused(
                f"{path} has an entry {name} that kplane did not write; give it another name first: kubectl config"
                f" rename-context {name} NEW, and rename its cluster and its user in the file"
            )
    target = present[0][0] if present else documents[0][0]
    former = _current(documents)
    # The replaced entry may be a control plane of the same name in another management cluster.
    desired_context = asked_context(plugin_of(document["users"][0]))
    present_contexts = [asked_context(plugin_of(_find(content, "users", name) or {})) for _, content in present]
    replaced = next(
        (present_context for present_context in present_contexts if present_context not in {None, desired_context}),
        None,
    )

    def add(held: Document) -> None:
        for section in _SECTIONS:
            added = list(document[section])
            names = {entry["name"] for entry in added}
            held[section] = [*(entry for entry in _entries(held, section) if entry.get("name") not in names), *added]

    _edit(target, add)
    _set_current(name)
    return Added(target, former if former != name else None, replaced)


def use_context(name: str) -> None:
    """Make a context current, if the user's kubeconfig contains it and no context is current."""
    if not _current(_read_all()) and name in context_names():
        _set_current(name)


def choose_context(*names: str) -> str:
    """Make the first existing context of these names current, and return its name. Raises Refused if none exists."""
    present = context_names()
    for name in names:
        if name in present:
            _set_current(name)
            return name
    paths = ", ".join(str(path) for path, _ in _read_all())
    raise Refused(f"{paths} has no context {' or '.join(names)}")


def context_names() -> Sequence[str]:
    """Return the names of all contexts of the user's kubeconfig."""
    return [str(entry.get("name")) for _, content in _read_all() for entry in _entries(content, "contexts")]


def has_entry(name: str) -> bool:
    """Return whether a context, a cluster or a user of the user's kubeconfig has this name."""
    return any(_find(content, section, name) for _, content in _read_all() for section in _SECTIONS)


def clusters_by_name() -> Mapping[str, Mapping[str, Any]]:
    """Return all clusters of the user's kubeconfig by name."""
    entries = [entry for _, content in _read_all() for entry in _entries(content, "clusters")]
    # kubectl takes the first of several clusters with the same name.
    return {str(entry.get("name")): entry.get("cluster") or {} for entry in reversed(entries)}


def server_of(context: str) -> str | None:
    """Return the address of the API server of a context in the user's kubeconfig; None if there is none."""
    documents = _read_all()
    context_entry = next((entry for _, content in documents if (entry := _find(content, "contexts", context))), None)
    if context_entry is None:
        return None
    name = (context_entry.get("context") or {}).get("cluster")
    cluster = next((entry for _, content in documents if (entry := _find(content, "clusters", name))), None)
    return str((cluster.get("cluster") or {}).get("server")) if cluster is not None else None


def remove_context(name: str, *, is_own: Callable[[Mapping[str, Any]], bool]) -> None:
    """Remove a context that kplane wrote from the user's kubeconfig, and the contexts that depend on it.

    These are the contexts with credentials from its cluster. `is_own` decides by the cluster entry of a file whether
    kplane wrote the entries of that name there. Entries of the user remain in each file.
    """

    def own_users(held: Document) -> frozenset[str]:
        plugins = {str(entry.get("name")): plugin_of(entry) for entry in _entries(held, "users")}
        served = {user for user, plugin in plugins.items() if is_plugin(plugin) and asked_context(plugin) == name}
        cluster = (_find(held, "clusters", name) or {}).get("cluster")
        return frozenset({*served, name} if cluster and is_own(cluster) else served)

    _remove(own_users)


def remove_control_plane(name: str, *, uid: str | None, context: str | None) -> Sequence[str]:
    """Remove the contexts of a deleted control plane, and return their names.

    Entries of former versions have no uid. They are identified by `name` and by `context`, the context of the
    management cluster.
    """

    def is_gone(user: Mapping[str, Any]) -> bool:
        plugin = plugin_of(user)
        same_uid = asked_uid(plugin) == uid if asked_uid(plugin) else asked_context(plugin) == context
        return asked_name(plugin) == name and same_uid

    return _remove(lambda held: frozenset(str(user.get("name")) for user in _entries(held, "users") if is_gone(user)))


def _remove(own_users: Callable[[Document], frozenset[str]]) -> Sequence[str]:
    """Remove the users that kplane wrote from each file, and their contexts. Return the names of the contexts.

    A context is identified by its user, so a renamed context is found too. If a removed context was current, the
    context of the management cluster becomes current, if it exists.
    """
    documents = _read_all()
    current, management_context = _current(documents), management(None).context
    removed: set[str] = set()
    for path, content in documents:
        users = own_users(content)
        contexts = [
            context for context in _entries(content, "contexts") if (context.get("context") or {}).get("user") in users
        ]
        if users:
            names = frozenset(str(context.get("name")) for context in contexts)
            _edit(path, functools.partial(_drop, users=users, contexts=names))
            removed |= names
    present = context_names()
    if current in removed and current not in present:
        _set_current(management_context if management_context is not None and management_context in present else "")
    return sorted(removed)


def _drop(held: Document, *, users: frozenset[str], contexts: frozenset[str]) -> None:
    """Remove users and contexts from a file, and the users' clusters that no other context uses."""
    held["users"] = [entry for entry in _entries(held, "users") if entry.get("name") not in users]
    held["contexts"] = [entry for entry in _entries(held, "contexts") if entry.get("name") not in contexts]
    used = {(entry.get("context") or {}).get("cluster") for entry in held["contexts"]}
    held["clusters"] = [entry for entry in _entries(held, "clusters") if entry.get("name") not in users - used]


def renew_plugins() -> Sequence[Path]:
    """Rewrite the entries of former versions of kplane in the user's kubeconfig. Returns the changed files."""
    paths = [
        path
        for path, content in _read_all()
        if any(renew_plugin(plugin_of(user)) is not None for user in _entries(content, "users"))
    ]
    for path in paths:
        _edit(path, lambda _: None)
    return paths


def check_writable() -> None:
    """Raise Refused if the user's kubeconfig is not writable."""
    path = kubeconfig_paths(os.environ)[0]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _read_all() -> list[tuple[Path, Document]]:
    """Return the files of the user's kubeconfig in kubectl's order. A missing file is empty."""
    return [(path, _read(path)) for path in kubeconfig_paths(os.environ)]


def _read(path: Path) -> Document:
    return dict(read_document(path)) if path.is_file() and path.stat().st_size else {}


def _entries(held: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    return [entry for entry in held.get(section) or [] if isinstance(entry, dict)]


def _find(held: Mapping[str, Any], section: str, name: str | None) -> dict[str, Any] | None:
    return next((entry for entry in _entries(held, section) if entry.get("name") == name), None)


def _current(documents: Sequence[tuple[Path, Document]]) -> str | None:
    return next((str(content["current-context"]) for _, content in documents if content.get("current-context")), None)


def _set_current(name: str) -> None:
    documents = _read_all()
    path = next((path for path, content in documents if content.get("current-context")), documents[0][0])

    def set_current(held: Document) -> None:
        held["current-context"] = name

    _edit(path, set_current)


def _edit(path: Path, change: Callable[[Document], None]) -> None:
    """Change a file atomically under kubectl's lock. Raises Refused if the file is not writable."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            content = _read(path)
            content.setdefault("apiVersion", "v1")
            content.setdefault("kind", "Config")
            change(content)
            content["users"] = [_renewed(user) for user in _entries(content, "users")]
            _replace(path, to_text(content))
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: Path, cause: str) -> Refused:
    return Refused(f"failed to write kubeconfig {path}: {cause}; set KUBECONFIG to a file that you can write")


def _renewed(user: dict[str, Any]) -> dict[str, Any]:
    plugin = renew_plugin(plugin_of(user))
    return user if plugin is None else {**user, "user": {**user["user"], "exec": plugin}}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that kubectl uses too: a file beside the kubeconfig."""
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
    """Replace the file atomically, readable only for its user. A symbolic link remains a link."""
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
