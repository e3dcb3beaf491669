"""Check of the pages of docs/: the pages pass, and the check reports violations."""

from __future__ import annotations

import pytest

from tools.documents import LONGEST, Page, check, listed, read_pages
from tools.reference.markdown import GENERATED

CONTENTS = "# Title\n\n[A](a.md)\n\n```{toctree}\n:hidden:\n\na\n```\n"


def test_pages_of_docs_pass_the_check() -> None:
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
def test_check_reports_a_page_that_breaks_a_rule(text: str, problem: str) -> None:
    problems = check([Page("index.md", CONTENTS), Page("a.md", text)])
    assert len(problems) == bool(problem)
    assert all(message.startswith(f"a.md: {problem}") for message in problems)


def test_benchmark_pages_may_be_long_and_have_tables() -> None:
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
def test_check_reports_pages_that_contents_miss_or_repeat(contents: str, problem: str) -> None:
    assert check([Page("index.md", contents), Page("a.md", "# A\n")]) == ([problem] if problem else [])


def test_listed_resolves_relative_entries_titles_and_globs() -> None:
    text = "# T\n```{toctree}\n:glob:\n\nThe first <one>\nsub/*\n```\n"
    page_names = {"how/index.md", "how/one.md", "how/sub/a.md", "how/sub/b.md", "how/sub/c/d.md"}
    assert listed(Page("how/index.md", text), page_names) == ["how/one.md", "how/sub/a.md", "how/sub/b.md"]
    above = "# T\n```{toctree}\n../one\n./two.md\n```\n"
    assert listed(Page("how/index.md", above), page_names) == ["one.md", "how/two.md"]


def test_page_counts_words_of_title_and_prose_only() -> None:
    page = Page("a.md", "# A title\n\nTwo words. Run `code --flag`.\n\n```sh\nnot counted\n```\n")
    assert (page.title, page.words, page.sentences) == ("A title", 7, [2, 2])
