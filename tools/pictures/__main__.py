"""Draw the pictures of docs/pictures from their sources, or record a terminal.

    python -m tools.pictures                         draw NAME.svg from each NAME.toml and NAME.cast
    python -m tools.pictures --check                 only compare
    python -m tools.pictures record FILE COMMAND...  run commands, and write the output of the terminal

A recording is of a real run. `make recording` writes docs/pictures/demo.cast from `make demo`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.pictures import diagram, recording
from tools.pictures.cast import Cast
from tools.pictures.record import record

__all__ = ["main", "render"]

DIRECTORY: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def render(directory: Path = DIRECTORY) -> Mapping[Path, str]:
    """Return the contents of all pictures, by their file."""
    diagrams = {path.with_suffix(".svg"): diagram.draw(path.read_text()) for path in sorted(directory.glob("*.toml"))}
    casts = {path.with_suffix(".svg"): recording.draw(Cast.load(path)) for path in sorted(directory.glob("*.cast"))}
    return diagrams | casts


def _draw(*, check: bool) -> int:
    pictures = render()
    status = 0
    for path, picture in pictures.items():
        if check and (not path.exists() or path.read_text() != picture):
            sys.stderr.write(f"{path} is out of date: run `python -m tools.pictures`\n")
            status = 1
        elif not check:
            path.write_text(picture)
    for path in sorted(set(DIRECTORY.glob("*.svg")) - set(pictures)):
        sys.stderr.write(f"{path} has no source: add {path.stem}.toml or {path.stem}.cast\n")
        status = 1
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a picture is out of date")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    recorder = commands.add_parser("record", help="run commands, and write what the terminal showed")
    recorder.add_argument("--columns", type=int, default=98, help="of the terminal; default: %(default)s")
    recorder.add_argument("--title", default="", help="of the window; default: the commands")
    recorder.add_argument("file", type=Path, help="the recording, such as docs/pictures/demo.cast")
    recorder.add_argument("commands", nargs="+", help="run by one bash, one after the other")
    given = parser.parse_args(arguments)
    if given.command is None:
        return _draw(check=given.check)
    title = given.title or "; ".join(given.commands)
    record(given.commands, columns=given.columns, title=title).save(given.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
