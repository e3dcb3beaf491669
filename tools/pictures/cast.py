"""Reads and writes recordings in the format asciicast v2: a header, then a line for each output with its time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cast", "Output"]


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a program, with its time."""

    seconds: float
    data: str


@dataclass(frozen=True, slots=True)
class Cast:
    """A recording."""

    columns: int
    title: str
    outputs: Sequence[Output]

    @classmethod
    def load(cls, path: Path) -> Cast:
        """Read a recording. Raises ValueError if it is of another format."""
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        about = json.loads(header)
        if about.get("version") != 2:
            raise ValueError(f"failed to read {path}: it is no asciicast of version 2")
        events = [json.loads(line) for line in lines]
        outputs = [Output(float(seconds), data) for seconds, kind, data in events if kind == "o"]
        return cls(about["width"], about.get("title", ""), outputs)

    def save(self, path: Path) -> None:
        """Write the recording."""
        rows = 2 + sum(output.data.count("\n") for output in self.outputs)
        header = {"version": 2, "width": self.columns, "height": rows, "title": self.title}
        lines = [header, *([round(event.seconds, 3), "o", event.data] for event in self.outputs)]
        path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")
