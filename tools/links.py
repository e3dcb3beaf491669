"""Checks the relative links of all documents, with their anchors: `python -m tools.links`.

Anchors have GitHub's form, which the site uses too. In code and settings, paths such as docs/how-to/install.md are
checked as well. Links to other sites are not followed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote

__all__ = ["anchors", "broken_links", "broken_mentions", "main", "targets"]

ROOT: Final = Path(__file__).resolve().parents[1]

_FENCE: Final = re.compile(r"\s*(?P<mark>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)")
_CODE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK: Final = re.compile(r"\]\((?P<target><[^>]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)")
_DEFINITION: Final = re.compile(r" {0,3}\[[^\]]+\]:\s+(?P<target>\S+)")
_SOURCE: Final = re.compile(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"(?P<target>[^\"\s]+)\"")
_HEADING: Final = re.compile(r" {0,3}(#{1,6})\s+(?P<text>.*?)\s*#*\s*")
_ID: Final = re.compile(r"<a\s+(?:id|name)=\"(?P<id>[^\"]+)\"")
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_MENTION: Final = re.compile(r"(?<![\w./-])docs/(?P<path>[\w./-]+\.md)(?:#(?P<anchor>[\w-]+))?")
_MENTIONING: Final = ("*.py", "*.yaml", "*.toml", "*.tpl", "*.txt", "*.json", "*.mod", "Makefile", "Dockerfile")


def broken_links(root: Path = ROOT) -> list[str]:
    """Return the broken links of documents, a line for each link."""
    problems = []
    for path in _files(root, "*.md"):
        for line, target in targets(path.read_text(encoding="utf-8")):
            if problem := _problem(path, target, root=root):
                problems.append(f"{path.relative_to(root)}:{line}: {target}: {problem}")
    return problems


def broken_mentions(root: Path = ROOT) -> list[str]:
    """Return the wrong paths of documents in other files. Tests are skipped, because they contain invented paths."""
    problems = []
    for path in _files(root, *_MENTIONING):
        name = str(path.relative_to(root))
        if name.startswith(("tests/", "changelog.d/")) or name == "CHANGELOG.md":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for mention in _MENTION.finditer(line):
                target = f"docs/{mention['path']}" + (f"#{mention['anchor']}" if mention["anchor"] else "")
                if problem := _problem(root / "x", target, root=root):
                    problems.append(f"{name}:{number}: {target}: {problem}")
    return problems


def targets(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and target of each link within the repository. Links in code are skipped."""
    for number, line in _lines(text):
        plain = _CODE.sub("code", line)
        for pattern in (_LINK, _DEFINITION, _SOURCE):
            for match in pattern.finditer(plain):
                target = match["target"].strip("<>")
                if target and not _ELSEWHERE.match(target):
                    yield number, target


def anchors(text: str) -> set[str]:
    """Return the anchors of a document, as GitHub derives them from its headings."""
    names: set[str] = set()
    counts = Counter[str]()
    for _, line in _lines(text):
        names |= {match["id"] for match in _ID.finditer(line)}
        heading = _HEADING.fullmatch(line)
        if heading is None:
            continue
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"])
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return names


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside of fenced blocks with their numbers, without comments."""
    fence, commented = "", False
    for number, line in enumerate(text.splitlines(), start=1):
        mark = None if commented else _FENCE.fullmatch(line)
        if fence:
            # A shorter fence, or a fence with a language, is content of the block.
            if mark and mark["mark"].startswith(fence) and not mark["info"].strip():
                fence = ""
        elif mark:
            fence = mark["mark"]
        else:
            shown, commented = _without_comments(line, commented=commented)
            yield number, shown


def _without_comments(line: str, *, commented: bool) -> tuple[str, bool]:
    """Remove comments from a line. Returns the rest, and whether a comment continues in the next line.

    Comment marks in code are kept.
    """
    shown = ""
    while line:
        if commented:
            _, end, line = line.partition("-->")
            commented = not end
            continue
        begin = _CODE.sub(lambda code: "x" * len(code[0]), line).find("<!--")
        commented = begin >= 0
        shown += line[:begin] if commented else line
        line = line[begin + len("<!--") :] if commented else ""
    return shown, commented


def _problem(source: Path, target: str, *, root: Path) -> str:
    """Return the problem of a link; empty if the link is correct."""
    path, _, anchor = unquote(target).partition("#")
    # Fragments become a part of CHANGELOG.md.
    folder = root if source.parent.name == "changelog.d" and source.name != "README.md" else source.parent
    file = (folder / path).resolve() if path else source
    if not file.is_relative_to(root):
        return "it leads out of the repository"
    if not file.exists():
        return "there is no such file"
    if anchor and file.suffix == ".md" and anchor not in _anchors_of(file):
        return "there is no such heading"
    return ""


@cache
def _anchors_of(path: Path) -> set[str]:
    return anchors(path.read_text(encoding="utf-8"))


def _files(root: Path, *patterns: str) -> list[Path]:
    """List files that are in git, or that are new and not ignored."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [root / name for name in sorted(set(listed)) if (root / name).is_file() and not (root / name).is_symlink()]


def main() -> int:
    """Run the command line. Returns the exit status."""
    problems = [*broken_links(), *broken_mentions()]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
