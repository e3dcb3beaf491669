"""Writes labels.md: labels, annotations and finalizers of kplane, from the constants that hold them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kplane.api.names import GATEWAY_NAMESPACE, GROUP
from tools.packages import ROOT, components
from tools.reference.markdown import code, page, table
from tools.reference.sources import attributes, modules, parsed

__all__ = ["names"]

_FOR_USERS: Final = frozenset(
    {
        "accept-data-loss",
        "addon",
        "adopt",
        "allow-endpoint",
        "allow-registration",
        "delete-admission",
        "destroy-data",
        "fake-nodes",
        "finish-rotation",
        "keep",
        "last-used",
        "paused",
        "rotate",
        "sleep-requested",
        "wake-requested",
    }
)
"""Names that users and gateways set. kplane writes all other names."""


class _Name(NamedTuple):
    name: str
    kind: str
    meaning: str


def names() -> str:
    """Return the page."""
    entries = [*dict.fromkeys(_found())]
    existing = {entry.name for entry in entries}
    if missing := _FOR_USERS - existing:
        raise LookupError(f"failed to list labels: nothing is called {sorted(missing)}; correct _FOR_USERS")
    written = [entry for entry in entries if entry.name not in _FOR_USERS]
    return page(
        "Labels, annotations and finalizers",
        f"This page lists the names below `{GROUP}/` and what they mean.",
        "## Names for users",
        "Set these yourself. `kplane` and the gateway set some of them too.",
        table(["name", "kind", "meaning"], _rows(sorted(entry for entry in entries if entry.name in _FOR_USERS))),
        "## Names that kplane writes",
        "Read these, for example as selectors. Do not change them: kplane decides by them what belongs to an object.",
        table(["name", "kind", "meaning"], _rows(written)),
    )


def _rows(found: Iterable[_Name]) -> Iterator[list[str]]:
    for each in found:
        yield [code(f"{GROUP}/{each.name}"), each.kind, _readable(each.meaning)]


def _readable(meaning: str) -> str:
    """Replace constants of kplane.api.names in a docstring by the names of labels."""
    constants = {attribute.name: _text(attribute.value) for attribute in attributes(parsed(_NAMES).body)}
    for constant, text in constants.items():
        if text:
            meaning = meaning.replace(f"`{constant}`", code(text.removeprefix(f"{GROUP}/")))
    for argument in ("name", "addon"):
        meaning = meaning.replace(f"`label_value({argument})`", "the name, or a stem and a digest of a long one")
    return meaning.replace(
        "Secret `gateway_secret_name(...)`", f"Secret of a control plane in {code(GATEWAY_NAMESPACE)}"
    )


_NAMES: Final = next(path for path in modules("api") if path.name == "names.py")


def _found() -> Iterator[_Name]:
    for path in modules(*components(ROOT)):
        for attribute in attributes(parsed(path).body):
            text = _text(attribute.value)
            if not text.startswith(f"{GROUP}/") or attribute.name == "API_VERSION":
                continue
            if not attribute.documentation:
                raise LookupError(f"failed to describe {text}: {attribute.name} in {path} has no docstring")
            yield _Name(text.removeprefix(f"{GROUP}/"), _kind(attribute.name), attribute.documentation)


def _kind(constant: str) -> str:
    for kind in ("label", "finalizer"):
        if constant.endswith(kind.upper()):
            return kind
    return "annotation"


def _text(value: ast.expr) -> str:
    """Return the text of a constant, which may begin with the name of the API group; empty if it is no text."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id="GROUP")), ast.Constant(value=str(rest))]):
            return f"{GROUP}{rest}"
        case _:
            return ""
