"""Length of the example programs."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

from tests.syntax import parse

from .conftest import EXAMPLES

LONGEST = 40
PROGRAMS = sorted(EXAMPLES.rglob("*.py"))
LAYOUT = {
    tokenize.COMMENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.INDENT, tokenize.NEWLINE,
    tokenize.NL,
}  # fmt: skip


def count(text: str) -> int:
    """Return the number of lines of code: without blank lines, comments and docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_count_leaves_out_blank_lines_comments_and_docstrings():
    text = '"""A\n\nprogram."""\n\n# Why\nsizes = [\n    1,\n]\n\ndef f():\n    """Do."""\n    return sizes\n'
    assert count(text) == 5


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_program_has_at_most_40_lines_of_code(program: Path):
    assert count(program.read_text()) <= LONGEST


def test_five_named_example_programs_exist():
    names = {str(path.relative_to(EXAMPLES)) for path in PROGRAMS}
    assert {"uniform.py", "finalizer/buckets.py", "hub/rollouts.py", "leader.py", "webhooks.py"} <= names
