"""docs/reference.md says what the code says."""

from __future__ import annotations

from tools.reference import main


def test_the_reference_is_up_to_date() -> None:
    assert main(["--check"]) == 0
