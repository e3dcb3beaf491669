"""Guide of provider, docs/multicluster: imports of its Python blocks, and names in its text."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.syntax import parse

_PAGES = sorted((Path(__file__).parents[2] / "docs" / "multicluster").glob("*.md"))
_TEXT = "\n".join(page.read_text() for page in _PAGES)
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _TEXT, re.DOTALL | re.MULTILINE)


def test_guide_has_pages_and_python_blocks():
    assert len(_PAGES) >= 7
    assert len(_BLOCKS) >= 5


@pytest.mark.parametrize("block", _BLOCKS)
def test_block_imports_only_existing_names(block):
    imported = [node for node in ast.walk(parse(block)) if isinstance(node, ast.ImportFrom)]
    # A block that begins with a file name is a program. The next blocks of the page test the program.
    programs = set(re.findall(r"^# (\w+)\.py$", _TEXT, re.MULTILINE))
    for node in imported:
        if node.module in programs:
            continue
        module = importlib.import_module(node.module)
        for alias in node.names:
            assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
            if node.module.startswith("kplane"):
                assert not isinstance(getattr(module, alias.name), type(ast)), f"{alias.name} is a module"


def test_names_in_text_exist_in_provider():
    """Tables and sentences mention these names of provider."""
    elsewhere = {
        "AnswerLimits": "kplane.provider.client.limits",
        "CONFIG_MAPS": "kplane.provider.client.resources",
        "KopfAware": "kplane.provider.contrib.kopf",
        "Serving": "kplane.provider.serving.http",
    }
    for name in ("Leader", "Sharded", "Manager", "single_cluster", *elsewhere):
        assert name in _TEXT
        assert hasattr(importlib.import_module(elsewhere.get(name, "kplane.provider")), name)
    assert all(f"`{module}`" in _TEXT or f"from {module} import" in _TEXT for module in elsewhere.values())


def test_table_names_the_module_of_each_provider():
    rows = re.findall(r"^\| `(\w+Provider)` \| `(\w+)` \|", _TEXT, re.MULTILINE)
    assert len(rows) >= 13
    for name, module in rows:
        assert hasattr(importlib.import_module(f"kplane.provider.providers.{module}"), name), f"{module} has no {name}"
