"""Checks the pages of docs/: length, title, share of tables, and that the contents list each page.

    python -m tools.documents            fail if a page breaks a rule
    python -m tools.documents --figures  print pages, words, the longest pages and words a sentence, by section

Words are counted without code blocks. Generated pages have no limits.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.links import targets
from tools.reference.markdown import GENERATED
from tools.style import prose_of_markdown, sentences

__all__ = ["DOCS", "Page", "check", "listed", "main", "read_pages"]

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
LONGEST: Final = 900
LONGER: Final[Mapping[str, int]] = {"contribute/architecture.md": 1500}
UNLIMITED: Final = ("troubleshoot/alerts.md", "reference/benchmarks/")
"""Pages, or folders of pages, without a limit of their length."""
LARGEST_TABLES: Final = 0.35
LOOKED_UP: Final = ("reference/", "troubleshoot/", "contribute/mistakes.md")
"""Pages that may consist of tables, because people look up facts there."""

_WORD: Final = re.compile(r"[A-Za-z0-9][\w'./-]*")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TOCTREE: Final = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENTRY: Final = re.compile(r"(?:.*<(?P<named>[^>]+)>|(?P<plain>\S+))")


@dataclass(frozen=True, slots=True)
class Page:
    """A page, by its path below docs/."""

    name: str
    text: str

    @property
    def is_generated(self) -> bool:
        """Whether `make generate` writes the page."""
        return self.text.startswith(GENERATED)

    @property
    def words(self) -> int:
        """Number of words for the reader, including words in tables."""
        return len(_WORD.findall(self._shown))

    @property
    def words_of_tables(self) -> int:
        """Number of words in tables."""
        rows = [line for line in self._shown.splitlines() if line.startswith("|")]
        return sum(len(_WORD.findall(row)) for row in rows)

    @property
    def title(self) -> str:
        """The first line, if it is a heading of level 1; else empty."""
        first = self._shown.lstrip().partition("\n")[0]
        return first.removeprefix("# ") if first.startswith("# ") else ""

    @property
    def sentences(self) -> list[int]:
        """Number of words in each sentence."""
        texts = [text for _, paragraph in prose_of_markdown(self.text) for text in sentences(paragraph)]
        return [len(_WORD.findall(text)) for text in texts]

    @property
    def _shown(self) -> str:
        return _COMMENT.sub("", _FENCE.sub("", self.text))


def read_pages(docs: Path = DOCS) -> list[Page]:
    """Read all pages, sorted by name."""
    return [Page(str(path.relative_to(docs)), path.read_text(encoding="utf-8")) for path in sorted(docs.rglob("*.md"))]


def check(pages: Sequence[Page]) -> list[str]:
    """Return the problems of the pages, a line for each problem."""
    problems = [f"{page.name}: {problem}" for page in pages for problem in _problems(page)]
    names = {page.name for page in pages}
    seen: dict[str, str] = {}
    for page in pages:
        for entry in listed(page, names):
            if entry not in names:
                problems.append(f"{page.name}: its contents list {entry}, which is no page")
            elif entry in seen:
                problems.append(f"{page.name}: its contents list {entry}, as those of {seen[entry]} do; list it once")
            elif not page.is_generated and not _links_to(page, entry):
                problems.append(f"{page.name}: its contents list {entry}, and its text has no link to it; add one")
            seen.setdefault(entry, page.name)
    unlisted = names - seen.keys() - {"index.md"}
    return problems + [
        f"{name}: no contents list it; add it to the {{toctree}} of its section" for name in sorted(unlisted)
    ]


def _problems(page: Page) -> Iterator[str]:
    if not page.title:
        yield "it does not begin with a title: # Title"
    if page.is_generated:
        return
    most = LONGER.get(page.name, LONGEST)
    if page.words > most and not page.name.startswith(UNLIMITED):
        yield f"it has {page.words} words, and may have {most}: cut it, or make two pages of it"
    if page.words_of_tables > LARGEST_TABLES * page.words and not page.name.startswith(LOOKED_UP):
        yield f"{page.words_of_tables} of its {page.words} words are in tables: a third may be; write sentences instead"


def _links_to(page: Page, entry: str) -> bool:
    """Return whether the text links to a page. On GitHub, readers see no contents, and need the link."""
    return any(_beside(page, target.partition("#")[0]) == entry for _, target in targets(page.text))


def _beside(page: Page, path: str) -> str:
    """Return the name of the page that a page links to by a relative path."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page.name), path))


def listed(page: Page, known: set[str]) -> list[str]:
    """Return the names of the pages that the contents of a page list, by {toctree}."""
    names = []
    for block in _TOCTREE.findall(page.text):
        lines = [line.strip() for line in block.splitlines()]
        is_glob = ":glob:" in lines
        for line in lines:
            entry = _ENTRY.fullmatch(line)
            if entry is None or line.startswith(":"):
                continue
            path = _beside(page, (entry["named"] or entry["plain"]).partition("#")[0].removesuffix(".md"))
            if is_glob and "*" in path:
                pattern = re.compile(re.escape(f"{path}.md").replace(r"\*", "[^/]*"))
                names += sorted(name for name in known if pattern.fullmatch(name) and name != page.name)
            else:
                names.append(f"{path}.md")
    return names


def _print_figures(pages: Sequence[Page]) -> None:
    sections = defaultdict[str, list[Page]](list)
    for page in pages:
        sections["generated" if page.is_generated else page.name.rpartition("/")[0] or "."].append(page)
    sections["all"] = [page for page in pages if not page.is_generated]
    print(f"{'section':<24}{'pages':>6}{'words':>8}{'a page':>8}{'words a sentence':>18}  longest")
    for section, members in sorted(sections.items()):
        words, counts = [page.words for page in members], [count for page in members for count in page.sentences]
        longest = max(members, key=lambda page: page.words)
        mean = sum(counts) / max(1, len(counts))
        print(
            f"{section:<24}{len(members):>6}{sum(words):>8}{sum(words) / len(words):>8.0f}{mean:>18.1f}"
            f"  {longest.name} ({longest.words})"
        )


def main(argv: list[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.documents", description=__doc__.partition("\n")[0])
    parser.add_argument("--figures", action="store_true", help="print figures by section")
    pages = read_pages()
    if parser.parse_args(argv).figures:
        _print_figures(pages)
        return 0
    problems = check(pages)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
