"""The style check: extraction of prose, and findings."""

from __future__ import annotations

import pytest

from tools.style import (
    FEWEST_WORDS,
    check_prose,
    check_subject,
    explanations,
    prose_of_markdown,
    prose_of_python,
    sentences,
    vague_shares,
)

LONG = " ".join(["word"] * 26) + "."


def test_sentences_end_at_full_stops_and_code_is_a_word() -> None:
    assert sentences("Run `make test -n 2. Now` first. See [the page](https://a.example/b). Then 1.2 is out.") == [
        "Run code first.",
        "See the page.",
        "Then 1.2 is out.",
    ]


def test_prose_of_markdown_has_only_paragraphs_and_items() -> None:
    text = """# Heading

First line
and the second.

- an item
- another
  of two lines

| table | cell |
|---|---|

```sh
not prose
```
"""
    assert list(prose_of_markdown(text)) == [
        (3, "First line and the second."),
        (6, "an item"),
        (7, "another of two lines"),
    ]


def test_prose_of_python_has_docstrings_comments_and_messages() -> None:
    text = '''"""About the module."""

# Why it is so,
# in two lines.
x = 1  # noqa: E501


def f():
    raise ValueError("failed to read the file: it is absent; make it")
'''
    assert sorted(prose_of_python(text)) == [
        (1, "About the module."),
        (3, "Why it is so, in two lines."),
        (9, "failed to read the file: it is absent; make it"),
    ]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("The operator renews the token.", []),
        (LONG, ["a sentence of 26 words (word word word word word word ...)"]),
        ("It is tried again.", ["'tried again': retry"]),
        ("It goes on to the next step.", []),
    ],
)
def test_check_prose_finds_long_sentences_and_discouraged_words(text: str, problems: list[str]) -> None:
    assert [finding.problem for finding in check_prose("docs/page.md", [(4, text)])] == problems


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("mcm: keep the last valid key", True),
        ("ci/lint: pin the actions", True),
        ("Let keys that cannot be used hold back nothing but themselves", False),
        ("mcm: " + "x" * 68, False),
    ],
)
def test_check_subject_requires_area_and_maximum_length(subject: str, accepted: bool) -> None:
    assert (check_subject(subject) == "") is accepted


def test_vague_shares_are_per_ten_thousand_words_without_code() -> None:
    named = ["The control plane sleeps."] * (FEWEST_WORDS // 4)
    vague = ["It says what `what` is, so long nobody looks."]
    shares = vague_shares([*named, *vague])
    assert {name: share for name, share in shares.items() if share} == {
        "what": 10,
        "says": 10,
        "nothing": 10,
        "so long": 10,
    }


def test_vague_shares_of_short_text_are_empty() -> None:
    assert vague_shares(["What nobody says."]) == {}


def test_explanations_omit_messages() -> None:
    text = '"""Docstring."""\nx = "a message of more than four words"  # comment\n'
    assert [paragraph for _, paragraph in explanations(text)] == ["Docstring.", "comment"]
