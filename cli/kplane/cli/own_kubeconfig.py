"""Changes the user's own kubeconfig: all files of KUBECONFIG, as kubectl merges them.

kubectl takes an entry from the first file that has it. So an entry is replaced in the file where it is, and a new one
goes to the first file. The name of the current context goes where one is set. An entry that kplane did not write is
never replaced or removed: each file is judged for itself.
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
    """What was done to the user's kubeconfig."""

    path: Path
    """The file that has the context."""
    former: str | None
    """The context that was the current one; None if there was none, or if it was this one."""
    replaced: str | None = None
    """The context of the management cluster that the replaced entry belonged to, if it is another one."""


def administrator_context(kubeconfig: Path, *, name: str) -> Document:
    """Return a kubeconfig with one cluster and one user as a context of this name."""
    document = yaml.safe_load(kubeconfig.read_text())
    return {
        "clusters": [{"name": name, "cluster": document["clusters"][0]["cluster"]}],
        "users": [{"name": name, "user": document["users"][0]["user"]}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def add_context(document: Mapping[str, Any], *, replace: bool = False) -> Added:
    """Add a kubeconfig with one context to the user's own, and make it the current one.

    An entry of the same name is replaced if it asks kplane for credentials, or with `replace`; all others stay as they
    are. Raises Refused if an entry of the name is another program's, or a person's.
    """
    name = document["current-context"]
    documents = _read_all()
    present = [(path, held) for path, held in documents if any(_find(held, section, name) for section in _SECTIONS)]
    for path, held in present:
        if not replace and not is_plugin(plugin_of(_find(held, "users", name) or {})):
            raise Refused(
                f"{path} has an entry {name} that kplane did not write; give it another name first: kubectl config"
                f" rename-context {name} NEW, and rename its cluster and its user in the file"
            )
    target = present[0][0] if present else documents[0][0]
    former = _current(documents)
    # A control plane of the same name, in another management cluster.
    asked = asked_context(plugin_of(document["users"][0]))
    asked_before = [asked_context(plugin_of(_find(held, "users", name) or {})) for _, held in present]
    replaced = next((each for each in asked_before if each not in {None, asked}), None)

    def add(held: Document) -> None:
        for section in _SECTIONS:
            added = list(document[section])
            names = {each["name"] for each in added}
            held[section] = [*(each for each in _entries(held, section) if each.get("name") not in names), *added]

    _edit(target, add)
    _set_current(name)
    return Added(target, former if former != name else None, replaced)


def use_context(name: str) -> None:
    """Make a context the current one, if the user's kubeconfig has it and no other one is current."""
    if not _current(_read_all()) and name in context_names():
        _set_current(name)


def choose_context(*names: str) -> str:
    """Make the first of these contexts that the user's kubeconfig has the current one, and return its name."""
    present = context_names()
    for name in names:
        if name in present:
            _set_current(name)
            return name
    paths = ", ".join(str(path) for path, _ in _read_all())
    raise Refused(f"{paths} has no context {' or '.join(names)}")


def context_names() -> Sequence[str]:
    """Return the names of all contexts of the user's kubeconfig."""
    return [str(each.get("name")) for _, held in _read_all() for each in _entries(held, "contexts")]


def has_entry(name: str) -> bool:
    """Tell whether a context, a cluster or a user of the user's kubeconfig has this name."""
    return any(_find(held, section, name) for _, held in _read_all() for section in _SECTIONS)


def clusters_by_name() -> Mapping[str, Mapping[str, Any]]:
    """Return all clusters of the user's kubeconfig."""
    entries = [each for _, held in _read_all() for each in _entries(held, "clusters")]
    # Of two with one name, kubectl takes the first.
    return {str(each.get("name")): each.get("cluster") or {} for each in reversed(entries)}


def server_of(context: str) -> str | None:
    """Return the address of the API server that a context of the user's kubeconfig leads to; None if there is none."""
    documents = _read_all()
    found = next((each for _, held in documents if (each := _find(held, "contexts", context))), None)
    if found is None:
        return None
    name = (found.get("context") or {}).get("cluster")
    cluster = next((each for _, held in documents if (each := _find(held, "clusters", name))), None)
    return str((cluster.get("cluster") or {}).get("server")) if cluster is not None else None


def remove_context(name: str, *, is_own: Callable[[Mapping[str, Any]], bool]) -> None:
    """Remove a context that kplane wrote from the user's kubeconfig, and those whose credentials come from its cluster.

    `is_own` tells by the cluster entry of a file whether kplane wrote the entries of that name there. Entries of a
    person stay, in any file.
    """

    def own_users(held: Document) -> frozenset[str]:
        plugins = {str(each.get("name")): plugin_of(each) for each in _entries(held, "users")}
        served = {user for user, plugin in plugins.items() if is_plugin(plugin) and asked_context(plugin) == name}
        cluster = (_find(held, "clusters", name) or {}).get("cluster")
        return frozenset({*served, name} if cluster and is_own(cluster) else served)

    _remove(own_users)


def remove_control_plane(name: str, *, uid: str | None, context: str | None) -> Sequence[str]:
    """Remove the contexts of a control plane that is gone, and return their names.

    Entries of former versions have no uid: they are known by `name` and by `context`, that of the management cluster.
    """

    def is_gone(user: Mapping[str, Any]) -> bool:
        plugin = plugin_of(user)
        same_uid = asked_uid(plugin) == uid if asked_uid(plugin) else asked_context(plugin) == context
        return asked_name(plugin) == name and same_uid

    return _remove(lambda held: frozenset(str(each.get("name")) for each in _entries(held, "users") if is_gone(each)))


def _remove(own_users: Callable[[Document], frozenset[str]]) -> Sequence[str]:
    """Remove the users of each file that kplane wrote there, and their contexts. Return the names of the contexts.

    A context is known by its user, whatever a person has named it. If one of them was the current one, that of the
    management cluster is current afterwards, if there is one.
    """
    documents = _read_all()
    current, then = _current(documents), management(None).context
    removed: set[str] = set()
    for path, held in documents:
        users = own_users(held)
        contexts = [each for each in _entries(held, "contexts") if (each.get("context") or {}).get("user") in users]
        if users:
            names = frozenset(str(each.get("name")) for each in contexts)
            _edit(path, functools.partial(_drop, users=users, contexts=names))
            removed |= names
    present = context_names()
    if current in removed and current not in present:
        _set_current(then if then is not None and then in present else "")
    return sorted(removed)


def _drop(held: Document, *, users: frozenset[str], contexts: frozenset[str]) -> None:
    """Remove users and contexts from a file, and the clusters of the users' names that no other context leads to."""
    held["users"] = [each for each in _entries(held, "users") if each.get("name") not in users]
    held["contexts"] = [each for each in _entries(held, "contexts") if each.get("name") not in contexts]
    used = {(each.get("context") or {}).get("cluster") for each in held["contexts"]}
    held["clusters"] = [each for each in _entries(held, "clusters") if each.get("name") not in users - used]


def renew_plugins() -> Sequence[Path]:
    """Rewrite the entries of former versions of kplane in the user's kubeconfig. Returns the files that had some."""
    paths = [
        path
        for path, held in _read_all()
        if any(renew_plugin(plugin_of(each)) is not None for each in _entries(held, "users"))
    ]
    for path in paths:
        _edit(path, lambda _: None)
    return paths


def check_writable() -> None:
    """Raise Refused if the user's kubeconfig cannot be changed."""
    path = kubeconfig_paths(os.environ)[0]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _read_all() -> list[tuple[Path, Document]]:
    """Return the files of the user's kubeconfig in kubectl's order; a file that is not there is empty."""
    return [(path, _read(path)) for path in kubeconfig_paths(os.environ)]


def _read(path: Path) -> Document:
    return dict(read_document(path)) if path.is_file() and path.stat().st_size else {}


def _entries(held: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    return [each for each in held.get(section) or [] if isinstance(each, dict)]


def _find(held: Mapping[str, Any], section: str, name: str | None) -> dict[str, Any] | None:
    return next((each for each in _entries(held, section) if each.get("name") == name), None)


def _current(documents: Sequence[tuple[Path, Document]]) -> str | None:
    return next((str(held["current-context"]) for _, held in documents if held.get("current-context")), None)


def _set_current(name: str) -> None:
    documents = _read_all()
    path = next((path for path, held in documents if held.get("current-context")), documents[0][0])

    def set_current(held: Document) -> None:
        held["current-context"] = name

    _edit(path, set_current)


def _edit(path: Path, change: Callable[[Document], None]) -> None:
    """Change a file under kubectl's lock, as a whole. Raises Refused if it cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            held = _read(path)
            held.setdefault("apiVersion", "v1")
            held.setdefault("kind", "Config")
            change(held)
            held["users"] = [_renewed(each) for each in _entries(held, "users")]
            _replace(path, to_text(held))
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: Path, cause: str) -> Refused:
    return Refused(f"failed to write kubeconfig {path}: {cause}; set KUBECONFIG to a file that you can write")


def _renewed(user: dict[str, Any]) -> dict[str, Any]:
    plugin = renew_plugin(plugin_of(user))
    return user if plugin is None else {**user, "user": {**user["user"], "exec": plugin}}


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
