"""Durations as users of Kubernetes write them, in Go's notation: 24h, 90m or 1h30m."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from pydantic import AfterValidator

from kplane.api.extensions import Extension, Rule, rules

__all__ = ["duration_rules", "duration_within", "parse_duration"]

# Each unit occurs at most once and with few digits, so that no duration of this form overflows Go's time.Duration.
_NUMBER: Final = r"[0-9]{{1,{digits}}}(\.[0-9]{{1,3}})?"
_PATTERN: Final = "".join(
    f"({_NUMBER.format(digits=digits)}{unit})?" for unit, digits in (("h", 4), ("m", 6), ("s", 8))
)
_UNITS: Final = {"h": "hours", "m": "minutes", "s": "seconds"}


def parse_duration(text: str) -> timedelta:
    """Return the duration of a text in hours, minutes and seconds, such as `1h30m` or `1.5h`.

    Raises ValueError for any other text.
    """
    if not text or not re.fullmatch(_PATTERN, text):
        raise ValueError(f"{text!r} is no time in hours, minutes and seconds, such as 24h, 90m or 1h30m")
    return timedelta(**{_UNITS[unit]: float(number) for number, unit in re.findall(r"([0-9.]+)([hms])", text)})


def duration_within(shortest: str, longest: str) -> AfterValidator:
    """Return a validator with the rules of `duration_rules`, for objects that no API server has validated."""

    def check(text: str) -> str:
        if not parse_duration(shortest) <= parse_duration(text) <= parse_duration(longest):
            raise ValueError(f"{text!r} is not from {shortest} to {longest}")
        return text

    return AfterValidator(check)


def duration_rules(field: str, *, shortest: str, longest: str) -> Extension:
    """Return the CEL rule for a duration within bounds; `field` is its path in the object, for the message.

    The type of the field needs a maximum length.
    """
    return Extension(
        rules(
            Rule(
                rule=(
                    f"self.matches(r'^{_PATTERN}$') && duration(self) >= duration('{shortest}')"
                    f" && duration(self) <= duration('{longest}')"
                ),
                message=(
                    f"{field} must be a time from {shortest} to {longest} in hours, minutes and seconds, such as 24h,"
                    " 90m or 1h30m"
                ),
            )
        )
    )
