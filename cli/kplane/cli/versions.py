"""Compares versions of kplane, as Python and as Helm write them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_newer"]

_VERSION: Final = re.compile(r"v?(?P<numbers>\d+(?:\.\d+)*)(?P<rest>[^+]*)")
_STEP: Final = re.compile(r"(?P<word>[a-z]+)\W*(?P<number>\d*)")

_Order = tuple[tuple[int, ...], bool, str, int]


def is_newer(version: str, other: str) -> bool:
    """Whether a version is newer than another one; a pre-release, such as 0.2.0rc1 or 0.2.0-rc.1, is older than 0.2.0.

    A text that is no version is never newer, and nothing is newer than it.
    """
    one, two = _order(version), _order(other)
    return one is not None and two is not None and one > two


def _order(version: str) -> _Order | None:
    found = _VERSION.fullmatch(version.partition("+")[0])
    if found is None:
        return None
    numbers = [int(each) for each in found["numbers"].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    step = _STEP.search(found["rest"])
    if step is None:
        return tuple(numbers), True, "", 0
    # Alphas, betas and candidates are in order by their first letter; what is in development is before all of them.
    word = "" if step["word"] == "dev" else step["word"][0]
    return tuple(numbers), False, word, int(step["number"] or 0)
