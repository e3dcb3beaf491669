"""Sets a released image in the chart: `python -m tools.chart_images COMPONENT REPOSITORY TAG DIGEST`.

The chart of this repository names no image of kplane, because another organisation could own the repository of the
image. The release workflow sets the images that it has signed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from kplane.binaries.progress import print_line

__all__ = ["VALUES", "name_image"]

VALUES = Path(__file__).resolve().parent.parent / "deploy" / "chart" / "kplane" / "values.yaml"
"""The default values of the chart."""


def name_image(component: str, *, repository: str, tag: str, digest: str, values: Path = VALUES) -> None:
    """Set the image of a component in a values file, and keep the comments of the file.

    Raises ValueError if the digest is invalid, or if the file has no empty image of the component.
    """
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"failed to name the image of {component}: {digest!r} is not a digest; give sha256:...")
    text = values.read_text()
    for key, value in {"repository": repository, "tag": tag, "digest": digest}.items():
        line = rf'(?m)(^{component}:\n  image:\n(?:    .*\n)*?    {key}: )""$'
        match = re.search(line, text)
        if match is None:
            raise ValueError(f"failed to name the image of {component}: {values} has no empty {component}.image.{key}")
        text = f'{text[: match.end(1)]}"{value}"{text[match.end() :]}'
    values.write_text(text)


def main(arguments: Sequence[str]) -> int:
    """Run `name_image` with the arguments of the command line."""
    if len(arguments) != 4:
        print_line("error: give COMPONENT REPOSITORY TAG DIGEST")
        return 2
    component, repository, tag, digest = arguments
    try:
        name_image(component, repository=repository, tag=tag, digest=digest)
    except ValueError as error:
        print_line(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
