"""Versions of Kubernetes: notation of users, notation of API servers, and comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Self

from pydantic import StringConstraints
from typing_extensions import override

from kplane.api.extensions import Extension, Rule, rules

__all__ = ["KubernetesVersion", "VersionText"]

_NUMBER: Final = "(0|[1-9][0-9]{0,3})"
_PATTERN: Final = rf"^v?{_NUMBER}[.]{_NUMBER}[.]{_NUMBER}$"
_REPORTED: Final = re.compile(rf"v?{_NUMBER}[.]{_NUMBER}[.]{_NUMBER}(?![0-9])")

VersionText = Annotated[
    str,
    StringConstraints(max_length=15, pattern=_PATTERN),
    Extension(
        rules(
            Rule(
                rule=f"self.matches('{_PATTERN}')",
                message="spec.version must name a release of Kubernetes by three numbers, such as 1.36.3 or v1.36.3",
            )
        )
    ),
]
"""A version in the notation of users."""


@dataclass(frozen=True, slots=True, order=True)
class KubernetesVersion:
    """A release of Kubernetes; instances are ordered by age."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Read a version of an API server (`v1.36.3`, `v1.36.3-vendor.1`) or of a user; return None for other texts."""
        match = _REPORTED.match(text) if text is not None else None
        return cls(*(int(number) for number in match.groups())) if match is not None else None

    @override
    def __str__(self) -> str:
        """Return the version without the leading v."""
        return f"{self.major}.{self.minor}.{self.patch}"

    def minors_after(self, other: KubernetesVersion) -> int:
        """Return the number of minor versions from `other` to this version; negative if this version is older."""
        # No second major version exists yet. A step between major versions counts as more than any policy allows.
        return self.minor - other.minor if self.major == other.major else (self.major - other.major) * 1000
