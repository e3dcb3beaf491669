"""The pages of docs/ keep their rules, and the check of these finds what breaks them."""

from __future__ import annotations

import pytest

from tools.documents import LONGEST, Page, check, listed, read_pages
from tools.reference.markdown import GENERATED

CONTENTS = "# Title\n\n[A](a.md)\n\n```{toctree}\n:hidden:\n\na\n```\n"


def test_each_page_keeps_the_rules() -> None:
    assert check(read_pages()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# A\n\nShort.\n", ""),
        (f"# A\n\n{'word ' * LONGEST}\n", "it has 901 words, and may have 900: cut it, or make two pages of it"),
        (f"# A\n\n```console\n{'word ' * LONGEST}\n```\n", ""),
        (f"{GENERATED}\n# A\n\n{'word ' * LONGEST}\n", ""),
        ("A\n", "it does not begin with a title: # Title"),
        ("<!-- e2e: x -->\n\n# A\n", ""),
        ("# A\n\n| a | b | c |\n|---|---|---|\n\nWords.\n", "3 of its 5 words are in tables: a third may be"),
    ],
)
def test_a_page_that_breaks_a_rule_is_told(text: str, problem: str) -> None:
    found = check([Page("index.md", CONTENTS), Page("a.md", text)])
    assert len(found) == bool(problem)
    assert all(each.startswith(f"a.md: {problem}") for each in found)


def test_folders_with_figures_may_be_long_and_have_tables() -> None:
    text = f"# A\n\n| {'word ' * LONGEST} |\n"
    contents = CONTENTS.replace("a.md", "reference/benchmarks/a.md").replace("\na\n", "\nreference/benchmarks/a\n")
    assert check([Page("index.md", contents), Page("reference/benchmarks/a.md", text)]) == []


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (CONTENTS, ""),
        (CONTENTS.replace("(a.md)", "(a.md#part)"), ""),
        (CONTENTS.replace("(a.md)", "(./x/../a.md)").replace("\na\n", "\n./a\n"), ""),
        ("# Title\n", "a.md: no contents list it; add it to the {toctree} of its section"),
        (CONTENTS.replace("\na\n", "\na\nb\n"), "index.md: its contents list b.md, which is no page"),
        (
            CONTENTS.replace("[A](a.md)", ""),
            "index.md: its contents list a.md, and its text has no link to it; add one",
        ),
        (
            CONTENTS.replace("\na\n", "\na\na.md\n"),
            "index.md: its contents list a.md, as those of index.md do; list it once",
        ),
    ],
)
def test_contents_list_each_page_once(contents: str, problem: str) -> None:
    assert check([Page("index.md", contents), Page("a.md", "# A\n")]) == ([problem] if problem else [])


def test_entries_are_relative_and_may_have_titles_and_stars() -> None:
    text = "# T\n```{toctree}\n:glob:\n\nThe first <one>\nsub/*\n```\n"
    known = {"how/index.md", "how/one.md", "how/sub/a.md", "how/sub/b.md", "how/sub/c/d.md"}
    assert listed(Page("how/index.md", text), known) == ["how/one.md", "how/sub/a.md", "how/sub/b.md"]
    above = "# T\n```{toctree}\n../one\n./two.md\n```\n"
    assert listed(Page("how/index.md", above), known) == ["one.md", "how/two.md"]


def test_figures_are_of_words_that_are_read() -> None:
    page = Page("a.md", "# A title\n\nTwo words. Run `code --flag`.\n\n```sh\nnot counted\n```\n")
    assert (page.title, page.words, page.sentences) == ("A title", 7, [2, 2])
