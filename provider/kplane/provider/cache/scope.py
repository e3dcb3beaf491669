"""Selection of the objects of a kind that a cache keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from kplane.provider.cache.namespaces import Namespaces
from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.resources import Resource
from kplane.provider.errors import ProviderError

__all__ = ["ANY_KIND", "CacheScope", "require_kinds", "scope_of"]

ANY_KIND: Final = "*"
"""Key of the scope for all kinds without a scope of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScope:
    """Selects the objects of a kind that a cache keeps, by all given criteria; by default all objects.

    Each of the `namespaces` has its own list and watch, so a Role in each namespace is enough; an empty tuple selects
    all namespaces. A `Namespaces` object may change while the cache runs. `name` selects a single object. With `name`
    and a namespace, `get` and `watch` on that name are enough, unless there is a `field_selector`. The selectors have
    the syntax of `Client.list`. Upstream's `cache.ByObject`.

    Raises ProviderError for a string in place of the tuple, and for an invalid label selector.
    """

    namespaces: tuple[str, ...] | Namespaces = ()
    name: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None

    def __post_init__(self) -> None:
        given: object = self.namespaces
        if isinstance(given, str):
            raise ProviderError(f"namespaces={given!r} is one text: write namespaces=({given!r},)")
        if not isinstance(self.namespaces, Namespaces):
            # In one order, so that equal scopes are one.
            object.__setattr__(self, "namespaces", tuple(sorted(set(self.namespaces))))
        if "" in self.namespaces or self.name == "":
            raise ProviderError("an empty name selects nothing: leave namespaces or name out to select all")
        _ = parse_label_selector(self.label_selector or "")

    @override
    def __str__(self) -> str:
        texts = {
            "": self.name,
            "in ": ", ".join(self.namespaces) or ("no namespace" if self.is_namespaced else ""),
            "with labels ": self.label_selector,
            "with fields ": self.field_selector,
        }
        return " ".join(f"{word}{text}" for word, text in texts.items() if text)

    @property
    def is_namespaced(self) -> bool:
        """Whether the scope is limited to namespaces; a `Namespaces` object may be empty at present."""
        return isinstance(self.namespaces, Namespaces) or bool(self.namespaces)

    def parts(self) -> tuple[CacheScope, ...]:
        """Split the scope into parts that a single list and watch can read: one for each namespace, or one for all."""
        return tuple(map(self.part, self.namespaces)) if self.is_namespaced else (self,)

    def part(self, namespace: str) -> CacheScope:
        """Return the part of this scope that is in a namespace."""
        return replace(self, namespaces=(namespace,))

    def covers(self, *, name: str | None = None, namespace: str | None = None) -> bool:
        """Tell whether name and namespace can be in the scope; None stands for any."""
        named = self.name is None or name is None or name == self.name
        return named and (not self.is_namespaced or namespace is None or namespace in self.namespaces)

    def require(self, resource: Resource, *, name: str | None = None, namespace: str | None = None) -> None:
        """Raise ProviderError for a read outside of the scope, whose objects would look as if they were deleted.

        A `name` needs its namespace.
        """
        if self.covers(name=name, namespace=(namespace or "") if name else namespace):
            return
        asked = "/".join(filter(None, (namespace, name)))
        raise ProviderError(
            f"{resource} {asked} is outside of the cache, which keeps {resource.plural} {self}: widen the CacheScope of"
            f" {parse_kind(resource)}, or read by the client"
        )


def require_kinds(names: Iterable[Resource | str]) -> None:
    """Raise ProviderError for a key that is no kind, because its scope would never apply."""
    for name in names:
        # `parse_kind` would read `example.com/v1/widgets` as the name of a kind.
        if isinstance(name, Resource):
            raise ProviderError(f"cache_scopes has kinds by their names: write {str(parse_kind(name))!r} for {name!r}")
        if name != ANY_KIND and not parse_kind(name).kind[0].isupper():
            raise ProviderError(f"{name!r} is a plural, not a kind: write it as 'example.com/v1/Widget'")


def scope_of(resource: Resource, scopes: Mapping[str, CacheScope]) -> CacheScope:
    """Return the scope of a kind, else that of `ANY_KIND`, whose namespaces apply to namespaced kinds only."""
    scope = scopes.get(str(parse_kind(resource)))
    if scope is None:
        scope = scopes.get(ANY_KIND, CacheScope())
        return scope if resource.namespaced else replace(scope, namespaces=())
    return scope
