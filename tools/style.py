"""Checks the prose of the repository: sentence length, discouraged words, vague words, commit subjects.

    python -m tools.style            fail if a file or a component is worse than the ratchet allows
    python -m tools.style --figures  print sentence lengths and the shares of vague words, by component
    python -m tools.style --figures data tests/data   the same of some folders only
    python -m tools.style --write    write the ratchet; do so after findings were mended

The ratchet, tools/style-ratchet.json, holds the findings of each file, and the shares of vague words of each component,
that are above the target. Each number may only fall.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from tools.reference.markdown import GENERATED

__all__ = [
    "Finding",
    "check_prose",
    "check_subject",
    "explanations",
    "main",
    "prose_of_markdown",
    "prose_of_python",
    "sentences",
    "vague_shares",
]

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
"""Patterns of discouraged words, with their replacements (HOUSE, prose)."""

VAGUE: Final[Mapping[str, tuple[str, int]]] = {
    "what": (r"what|whatever", 15),
    "where": (r"where", 15),
    "says": (r"says|said", 3),
    "one": (r"one|ones", 40),
    "nothing": (r"nothing|nobody|no one", 8),
    "those": (r"those", 8),
    "so long": (r"so long", 0),
}
"""Words that stand for a thing instead of naming it: pattern, and the limit per 10,000 words.

Words of docstrings and comments count. The limits are about twice the figures of anyio, gafaelfawr, kopf and kr8s.
"""
_VAGUE: Final = {name: (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), most) for name, (words, most) in VAGUE.items()}
FEWEST_WORDS: Final = 1000
"""A component with fewer words of docstrings and comments has no meaningful shares."""

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
    """A line that breaks a rule."""

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
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield from [(node.lineno, node.value)] if len(node.value.split()) > 4 else []
    yield from explanations(text)


@functools.cache
def explanations(text: str) -> Sequence[tuple[int, str]]:
    """Return line number and text of each paragraph of docstrings and comments of Python."""
    return (*_docstrings(text), *_comments(text))


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for offset, paragraph in prose_of_markdown(node.value.value):
                yield node.lineno + offset - 1, paragraph


def _comments(text: str) -> Iterator[tuple[int, str]]:
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


def vague_shares(paragraphs: Iterable[str]) -> dict[str, int]:
    """Count vague words per 10,000 words, by group. Empty if there are fewer than `FEWEST_WORDS` words."""
    plain = [_CODE_WORDS.sub("code", paragraph) for paragraph in paragraphs]
    words = sum(len(_WORD.findall(each)) for each in plain)
    if words < FEWEST_WORDS:
        return {}
    found = {name: sum(len(pattern.findall(each)) for each in plain) for name, (pattern, _) in _VAGUE.items()}
    return {name: round(count * 10_000 / words) for name, count in found.items()}


def check_subject(subject: str) -> str:
    """Return the error in the subject of a commit, or an empty string."""
    if len(subject) > LONGEST_SUBJECT:
        return f"{len(subject)} characters; {LONGEST_SUBJECT} at most"
    return "" if _SUBJECT.match(subject) else "expected `area: imperative`"


def _paragraphs(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    return list(prose_of_python(text) if path.suffix == ".py" else prose_of_markdown(text))


def _files(root: Path, *patterns: str) -> list[Path]:
    """List the files of git that match and that a person writes; the changelog is history."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--", *patterns], check=True, capture_output=True, text=True
    )
    return [root / name for name in listed.stdout.splitlines() if name != "CHANGELOG.md" and _is_written(root / name)]


def _checked_files(root: Path) -> list[Path]:
    """List documents and the Python of the components. Of tests, only the vague words are counted."""
    return [path for path in _files(root, "*.py", "*.md") if path.relative_to(root).parts[0] != "tests"]


def _shares(root: Path) -> dict[str, dict[str, int]]:
    """Return the shares of vague words of each component, and of the tests of each."""
    prose = defaultdict[str, list[str]](list)
    for path in _files(root, "*.py"):
        folder, *rest = path.relative_to(root).parts
        component = f"tests/{rest[0]}" if folder == "tests" and len(rest) > 1 else folder
        prose[component] += [paragraph for _, paragraph in explanations(path.read_text(encoding="utf-8"))]
    return {component: shares for component, found in sorted(prose.items()) if (shares := vague_shares(found))}


def _above_target(shares: Mapping[str, int]) -> dict[str, int]:
    return {name: share for name, share in shares.items() if share > VAGUE[name][1]}


def _is_written(path: Path) -> bool:
    """Return whether a person writes a file. Text of generated pages is checked in the code that generates it."""
    if not path.is_file() or path.is_symlink():
        return False
    return path.suffix != ".md" or not path.read_text(encoding="utf-8").startswith(GENERATED)


def _findings(root: Path) -> dict[str, list[Finding]]:
    found = {}
    for path in _checked_files(root):
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
        return []  # A shallow clone lacks the commits. The full clone that pushed them has checked their subjects.
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{since}..HEAD"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [f"commit {line}: {problem}" for line in lines if (problem := check_subject(line.partition(" ")[2]))]


def _print_figures(root: Path, folders: Sequence[str]) -> None:
    by_part = defaultdict[str, list[int]](list)
    for path in _checked_files(root):
        for _, paragraph in _paragraphs(path):
            by_part[path.relative_to(root).parts[0]] += [len(_WORD.findall(each)) for each in sentences(paragraph)]
    by_part["all"] = [count for counts in by_part.values() for count in counts]
    print(f"{'part':<24}{'sentences':>10}{'words each':>12}{f'above {LONGEST_SENTENCE}':>10}")
    for part, counts in sorted(by_part.items()):
        if counts and (not folders or part in folders):
            long = sum(count > LONGEST_SENTENCE for count in counts)
            print(f"{part:<24}{len(counts):>10}{sum(counts) / len(counts):>12.1f}{long / len(counts):>10.1%}")
    print(f"\n{'per 10,000 words':<28}" + "".join(f"{name:>10}" for name in VAGUE))
    print(f"{'target':<28}" + "".join(f"{most:>10}" for _, most in VAGUE.values()))
    for component, shares in _shares(root).items():
        if not folders or component in folders:
            print(f"{component:<28}" + "".join(f"{shares[name]:>10}" for name in VAGUE))


def _check(root: Path) -> int:
    ratchet = json.loads(RATCHET.read_text())
    allowed, found = ratchet["findings"], _findings(root)
    worse = [name for name in found if len(found[name]) > allowed.get(name, 0)]
    for name in worse:
        print(*found[name], sep="\n")
        print(f"{name}: {len(found[name])} findings; the ratchet allows {allowed.get(name, 0)}")
    vague = [
        f"{component}: {share} times '{name}' per 10,000 words of docstrings and comments; name the things instead:"
        f" the target is {VAGUE[name][1]}, the ratchet allows {most}"
        for component, shares in _shares(root).items()
        for name, share in _above_target(shares).items()
        if share > (most := ratchet["vague"].get(component, {}).get(name, VAGUE[name][1]))
    ]
    print(*vague, sep="\n", end="\n" if vague else "")
    subjects = _subjects(root)
    print(*subjects, sep="\n", end="\n" if subjects else "")
    better = [name for name, count in allowed.items() if len(found.get(name, ())) < count]
    if better and not worse:
        print(f"style: {len(better)} files are better than the ratchet says: run `python -m tools.style --write`")
    return 1 if worse or vague or subjects else 0


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.style", description=__doc__.partition("\n")[0])
    parser.add_argument("--figures", nargs="*", metavar="FOLDER", help="print figures by component")
    parser.add_argument("--write", action="store_true", help="write the ratchet")
    given = parser.parse_args(argv)
    if given.figures is not None:
        _print_figures(ROOT, given.figures)
    elif given.write:
        counts = {name: len(findings) for name, findings in sorted(_findings(ROOT).items())}
        shares = {name: above for name, found in _shares(ROOT).items() if (above := _above_target(found))}
        RATCHET.write_text(json.dumps({"findings": counts, "vague": shares}, indent=1) + "\n")
    else:
        return _check(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
