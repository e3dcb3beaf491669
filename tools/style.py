"""Checks the prose of the repository: sentence length, discouraged words, commit subjects.

    python -m tools.style            fail if a file has more findings than the ratchet allows
    python -m tools.style --figures  print words a sentence and the share of long sentences, by component
    python -m tools.style --write    write the ratchet; do so after findings were mended

The ratchet, tools/style-ratchet.json, holds the number of findings of each file that was not yet rewritten. The number
of a file may only fall.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from tools.reference.markdown import GENERATED

__all__ = ["Finding", "check_prose", "check_subject", "main", "prose_of_markdown", "prose_of_python", "sentences"]

ROOT: Final = Path(__file__).resolve().parents[1]
RATCHET: Final = ROOT / "tools" / "style-ratchet.json"
LONGEST_SENTENCE: Final = 25
LONGEST_SUBJECT: Final = 72

DISCOURAGED: Final[Mapping[str, str]] = {
    r"whoever": "name the actor: the user, the tenant, the operator",
    r"nobody|no one": "say what happens, or name the actor",
    r"somebody( else)?": "name the actor",
    r"one of which|each of which": "start a new sentence",
    r"neither": "say what happens first; at most one negation",
    r"tried again|try again later": "retry",
    r"goes on(?! to\b)|go on(?! to\b)": "continue",
    r"take back|takes back|taken back": "revoke",
    r"give back|gives back|given back": "release, yield",
    r"namesakes?|belongings": "objects of the same name; owned objects",
    r"and not the other way round|all the same|be that as it may": "leave it out",
}
"""Pattern: what to write instead (HOUSE, prose)."""

_DISCOURAGED: Final = [
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), advice) for pattern, advice in DISCOURAGED.items()
]
_SUBJECT: Final = re.compile(r"[a-z0-9_./-]+(\([a-z0-9_./-]+\))?: \S")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')`*_]*\s+(?=[\"'(`*_]*[A-Z0-9`])")
_WORD: Final = re.compile(r"[A-Za-z0-9][\w'./-]*")
_CODE_WORDS: Final = re.compile(r"`+[^`]+`+")
_DIRECTIVE: Final = re.compile(r"#\s*(noqa|type:|pragma|!|fmt:|ruff:|mypy:)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One place to mend."""

    path: str
    line: int
    problem: str

    @override
    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


def sentences(text: str) -> list[str]:
    """Cut a paragraph into sentences. A code span counts as one word."""
    plain = _CODE_WORDS.sub("code", re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text))
    return [part for part in _SENTENCE_END.split(" ".join(plain.split())) if _WORD.search(part)]


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Give line number and text of each paragraph and list item, without code blocks, tables and headings."""
    block: list[str] = []
    first, fenced = 0, False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
        starts = stripped.startswith(("#", "|", "<!--", "```")) or line.startswith("    ")
        item = re.match(r"([-*]|\d+\.)\s+", stripped)
        if (fenced or starts or item or not stripped) and block:
            yield first, " ".join(block)
            block = []
        if fenced or starts or not stripped:
            continue
        if not block:
            first = number
        block.append(stripped[item.end() :] if item else stripped.lstrip("> "))


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Give line number and text of each paragraph of docstrings, comments, and strings of five words or more."""
    tree = ast.parse(text)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for offset, paragraph in prose_of_markdown(node.value.value):
                yield node.lineno + offset - 1, paragraph
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_message = id(node) not in documented and len(node.value.split()) > 4
            yield from [(node.lineno, node.value)] if is_message else []
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if comment and token.start[0] != last + 1:
            yield first, " ".join(comment)
            comment = []
        if not comment:
            first = token.start[0]
        comment.append(token.string.lstrip("#: "))
        last = token.start[0]
    if comment:
        yield first, " ".join(comment)


def check_prose(path: str, paragraphs: Iterable[tuple[int, str]]) -> list[Finding]:
    """Find long sentences and discouraged words."""
    found = set[Finding]()
    for line, paragraph in paragraphs:
        for sentence in sentences(paragraph):
            if (count := len(_WORD.findall(sentence))) > LONGEST_SENTENCE:
                found.add(Finding(path, line, f"a sentence of {count} words ({' '.join(sentence.split()[:6])} ...)"))
        for pattern, advice in _DISCOURAGED:
            for match in pattern.finditer(paragraph):
                found.add(Finding(path, line, f"'{match[0]}': {advice}"))
    return sorted(found, key=lambda each: (each.line, each.problem))


def check_subject(subject: str) -> str:
    """Return what is wrong with the subject of a commit; empty if nothing is."""
    if len(subject) > LONGEST_SUBJECT:
        return f"{len(subject)} characters; {LONGEST_SUBJECT} at most"
    return "" if _SUBJECT.match(subject) else "expected `area: imperative`"


def _paragraphs(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    return list(prose_of_python(text) if path.suffix == ".py" else prose_of_markdown(text))


def _files(root: Path) -> list[Path]:
    """List documents and the Python of the components; tests read as code, and the changelog is history."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--", "*.py", "*.md"], check=True, capture_output=True, text=True
    )
    names = [name for name in listed.stdout.splitlines() if not name.startswith("tests/") and name != "CHANGELOG.md"]
    return [root / name for name in names if _is_written(root / name)]


def _is_written(path: Path) -> bool:
    """Tell whether a person writes a file. What the code says in generated pages is checked in the code."""
    if not path.is_file() or path.is_symlink():
        return False
    return path.suffix != ".md" or not path.read_text(encoding="utf-8").startswith(GENERATED)


def _findings(root: Path) -> dict[str, list[Finding]]:
    found = {}
    for path in _files(root):
        name = str(path.relative_to(root))
        if findings := check_prose(name, _paragraphs(path)):
            found[name] = findings
    return found


def _subjects(root: Path) -> list[str]:
    since = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["kplane"]["style"]["subjects-since"]
    known = subprocess.run(
        ["git", "-C", str(root), "cat-file", "-e", f"{since}^{{commit}}"], check=False, stderr=subprocess.DEVNULL
    )
    if known.returncode:
        return []  # A shallow clone: the push that brought the commits was checked where they were made.
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{since}..HEAD"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [f"commit {line}: {problem}" for line in lines if (problem := check_subject(line.partition(" ")[2]))]


def _print_figures(root: Path) -> None:
    by_part = defaultdict[str, list[int]](list)
    for path in _files(root):
        for _, paragraph in _paragraphs(path):
            by_part[path.relative_to(root).parts[0]] += [len(_WORD.findall(each)) for each in sentences(paragraph)]
    by_part["all"] = [count for counts in by_part.values() for count in counts]
    print(f"{'part':<24}{'sentences':>10}{'words each':>12}{f'above {LONGEST_SENTENCE}':>10}")
    for part, counts in sorted(by_part.items()):
        if counts:
            long = sum(count > LONGEST_SENTENCE for count in counts)
            print(f"{part:<24}{len(counts):>10}{sum(counts) / len(counts):>12.1f}{long / len(counts):>10.1%}")


def _check(root: Path) -> int:
    allowed = json.loads(RATCHET.read_text())
    found = _findings(root)
    worse = [name for name in found if len(found[name]) > allowed.get(name, 0)]
    for name in worse:
        print(*found[name], sep="\n")
        print(f"{name}: {len(found[name])} findings; the ratchet allows {allowed.get(name, 0)}")
    subjects = _subjects(root)
    print(*subjects, sep="\n", end="\n" if subjects else "")
    better = [name for name, count in allowed.items() if len(found.get(name, ())) < count]
    if better and not worse:
        print(f"style: {len(better)} files are better than the ratchet says: run `python -m tools.style --write`")
    return 1 if worse or subjects else 0


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.style", description=__doc__.partition("\n")[0])
    parser.add_argument("--figures", action="store_true", help="print figures by component")
    parser.add_argument("--write", action="store_true", help="write the ratchet")
    given = parser.parse_args(argv)
    if given.figures:
        _print_figures(ROOT)
    elif given.write:
        counts = {name: len(findings) for name, findings in sorted(_findings(ROOT).items())}
        RATCHET.write_text(json.dumps(counts, indent=1) + "\n")
    else:
        return _check(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
