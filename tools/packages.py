"""Writes the lists of packages in pyproject.toml. A new component is then a folder and a name in a layer.

    python -m tools.packages            fail if a list differs from the folders, or a component has no layer
    python -m tools.packages --write    write the lists

A component X is a folder X/kplane/X with `__init__.py`. The comment after a list defines its content:

    packages = [...]  # every component as {}/kplane, without provider
    root_packages = [...]  # every component as kplane.{}, and e2e, tools

The layer is written by hand, because it decides which components the new one may import. It is in the contract of
import-linter without containers.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["components", "main", "with_lists", "without_layer"]

ROOT: Final = Path(__file__).resolve().parents[1]
PYPROJECT: Final = ROOT / "pyproject.toml"
_LIST: Final = re.compile(
    r"^(?P<key>[\w-]+ = )\[.*\](?P<comment>  # every component as (?P<form>\S*\{\}[^\s,]*)"
    r"(?:, without (?P<without>[^;\n]+?))?(?:, and (?P<more>[^;\n]+?))?)$",
    re.MULTILINE,
)


def components(root: Path) -> list[str]:
    """Return the names of all components below `root`, sorted."""
    return sorted(file.parent.name for file in root.glob("*/kplane/*/__init__.py"))


def with_lists(text: str, *, names: Sequence[str]) -> str:
    """Return the text of pyproject.toml with each list as its comment defines it. `names` are the components.

    Raises LookupError if a comment excludes a component that does not exist.
    """

    def written(found: re.Match[str]) -> str:
        without, more = (re.split(r",\s*", found[group] or "") for group in ("without", "more"))
        if missing := set(filter(None, without)) - set(names):
            raise LookupError(f"pyproject.toml: {found['key']}leaves out {sorted(missing)}; correct its comment")
        items = [found["form"].format(name) for name in names if name not in without]
        return f"{found['key']}{json.dumps([*items, *filter(None, more)])}{found['comment']}"

    return _LIST.sub(written, text)


def without_layer(text: str, *, names: Sequence[str]) -> list[str]:
    """Return the components that are in no layer of the text of pyproject.toml. import-linter would ignore them."""
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    layers = [layer for contract in contracts if contract.get("containers") == [] for layer in contract["layers"]]
    placed = {module.strip() for layer in layers for module in layer.split("|")}
    return [name for name in names if f"kplane.{name}" not in placed]


def main(arguments: Sequence[str]) -> int:
    """Check the lists, or write them. Returns the exit code."""
    text, names = PYPROJECT.read_text(), components(ROOT)
    if unplaced := without_layer(text, names=names):
        print(f"pyproject.toml has no layer for {', '.join(unplaced)}; add kplane.{unplaced[0]} to the first contract")
        return 1
    changed = with_lists(text, names=names)
    if "--write" in arguments:
        PYPROJECT.write_text(changed)
    elif changed != text:
        print("pyproject.toml does not list the components that there are; run python -m tools.packages --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
