"""Check of links between documents, and of paths of documents in code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.links import anchors, broken_links, broken_mentions, targets


def test_links_of_documents_are_not_broken() -> None:
    assert broken_links() == []


def test_documents_that_code_mentions_exist() -> None:
    assert broken_mentions() == []


def test_anchors_match_the_anchors_of_github() -> None:
    text = """# Title

## `kplane up`, and *more*
## A [link](x.md): what?
## Twice
```sh
# no heading
```
## Twice
<a id="own"></a>
"""
    assert anchors(text) == {"title", "kplane-up-and-more", "a-link-what", "twice", "twice-1", "own"}


def test_targets_ignore_code_comments_and_other_sites() -> None:
    text = """[a](one.md) and [b](two.md#x "title"), `[c](no.md)`, [d](https://example.org/x.md) [e](#here)
![f](pictures/f.svg) <img src="g.svg"> [h](<a b.md>) [![i](i.svg)](i.md)

```
[j](no.md)
```
<!-- [k](no.md) -->
[l]: three.md
"""
    assert [target for _, target in targets(text)] == [
        "one.md",
        "two.md#x",
        "#here",
        "pictures/f.svg",
        "a b.md",
        "i.svg",
        "i.md",
        "g.svg",
        "three.md",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("````\n```\n[a](a.md)\n```\n[b](b.md)\n````\n[c](c.md)", ["c.md"]),
        ("~~~\n```\n[a](a.md)\n~~~\n[b](b.md)", ["b.md"]),
        ("```\n```sh\n[a](a.md)\n```\n[b](b.md)", ["b.md"]),
        ("1. x\n\n      ```\n      [a](a.md)\n      ```\n\n[b](b.md)", ["b.md"]),
        ("```a``` [b](b.md)\n[c](c.md)", ["b.md", "c.md"]),
        ("```html\n<!--\n```\n[a](a.md)\n<!-- [b](b.md) -->", ["a.md"]),
        ("[a](a.md) <!-- [b](b.md)\n```\n[c](c.md) --> [d](d.md)", ["a.md", "d.md"]),
        ("<!-- a --> [b](b.md) <!-- c --> [d](d.md)", ["b.md", "d.md"]),
        ("`<!--` [a](a.md)\n[b](b.md)", ["a.md", "b.md"]),
        ("[a](a.md 'title') [b](b.md 'it is (b)')", ["a.md", "b.md"]),
    ],
)
def test_targets_follow_nested_fences_and_comments(text: str, found: list[str]) -> None:
    assert [target for _, target in targets(text)] == found


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("other.md#there", ""),
        ("../code.py", ""),
        ("../docs", ""),
        ("#title", ""),
        ("gone.md", "there is no such file"),
        ("other.md#gone", "there is no such heading"),
        ("../../x.md", "it leads out of the repository"),
    ],
)
def test_broken_link_is_reported_with_its_line(target: str, problem: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "code.py").touch()
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## There\n")
    (tmp_path / "docs" / "page.md").write_text(f"# Title\n\n[x]({target})\n")
    assert broken_links(tmp_path) == ([f"docs/page.md:3: {target}: {problem}"] if problem else [])


def test_mention_of_missing_document_is_reported(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "code.py").write_text("# See docs/page.md, and docs/gone.md#x.\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Title\n")
    assert broken_mentions(tmp_path) == ["code.py:1: docs/gone.md#x: there is no such file"]
