"""Parses the Python files of the components without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "Attribute", "attributes", "modules", "parsed"]

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Attribute:
    """A name with an assignment, and the docstring below the assignment."""

    name: str
    value: ast.expr
    documentation: str


def modules(*components: str) -> list[Path]:
    """List the modules of components, sorted by path within each component."""
    return [path for component in components for path in sorted((ROOT / component / "kplane").rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    """Parse a module."""
    return ast.parse(path.read_text())


def attributes(body: Sequence[ast.stmt]) -> Iterator[Attribute]:
    """Yield the assignments to single names in the body of a module or a class."""
    for number, node in enumerate(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        documentation = ""
        match body[number + 1 : number + 2]:
            case [ast.Expr(value=ast.Constant(value=str(text)))]:
                documentation = " ".join(text.split())
            case _:
                pass
        yield Attribute(name, value, documentation)
