"""Namespaces of a cache scope that change while caches run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from typing_extensions import override

from kplane.provider.errors import ProviderError

__all__ = ["Namespaces"]

Changed = Callable[[str], None]


class Namespaces:
    """The namespaces of a `CacheScope`, to which namespaces are added and from which they are removed at any time.

    `CacheScope(namespaces=Namespaces("web", "db"))` keeps the objects of these namespaces. After `add`, each informer
    of the scope lists and watches the new namespace; its handlers get the objects as ADDED with `initial`. After
    `remove`, the watch of the namespace ends, its objects leave the cache, and handlers get DELETED for each. Without
    namespaces a scope is empty. Several caches may share the object; use it in their event loop only.
    """

    def __init__(self, *names: str) -> None:
        self._names: dict[str, None] = {}
        self._followers: list[tuple[Changed, Changed]] = []
        self.add(*names)

    @override
    def __repr__(self) -> str:
        return f"Namespaces({', '.join(map(repr, self))})"

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Return the names, sorted."""
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def add(self, *names: str) -> None:
        """Add namespaces; names that are present already change nothing. Raises ProviderError for an empty name."""
        if "" in names:
            raise ProviderError("failed to add a namespace: its name is empty; leave the namespaces out to select all")
        for name in names:
            if name not in self._names:
                self._names[name] = None
                self._notify(0, name)

    def remove(self, *names: str) -> None:
        """Remove namespaces; unknown names change nothing."""
        for name in names:
            if name in self._names:
                del self._names[name]
                self._notify(1, name)

    def follow(self, added: Changed, removed: Changed) -> Callable[[], None]:
        """Call a function for each change from now on. Returns a function that ends the calls."""
        follower: Final = (added, removed)
        self._followers.append(follower)
        return lambda: self._followers.remove(follower)

    def _notify(self, change: int, name: str) -> None:
        for follower in tuple(self._followers):
            follower[change](name)
