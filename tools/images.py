"""Writes the list of images that an installation uses: `python -m tools.images`.

The list has the images of the chart's default values. Users copy these images to registries of their own if their
clusters cannot reach the images' registries.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

__all__ = ["LIST", "images", "render"]

_ROOT = Path(__file__).resolve().parent.parent
_CHART = _ROOT / "deploy" / "chart" / "kplane"

LIST = _ROOT / "deploy" / "images" / "list.txt"
"""Path of the list, with an image per line."""


def images(chart: Path = _CHART) -> list[str]:
    """Return the images of the chart's default values, including the gateway, sorted and without duplicates."""
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text())
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    references = {values["etcd"]["image"]}
    references |= {values["controlPlanes"][key] for key in ("kubeApiserverImage", "etcdImage")}
    for component in ("operator", "mcm", "gateway"):
        image = values[component]["image"]
        digest = f"@{image['digest']}" if image["digest"] else ""
        references.add(f"{image['repository'] or f'kplane-{component}'}:{image['tag'] or version}{digest}")
    return sorted(references)


def render(chart: Path = _CHART) -> str:
    """Return the text of the list."""
    return "".join(f"{image}\n" for image in images(chart))


if __name__ == "__main__":
    LIST.write_text(render())
    sys.exit(0)
