"""Writes the list of images that an installation uses: `python -m tools.images`.

They are those of the chart's default values. Installations without a way to their registries copy them elsewhere.
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
"""The list, one image a line."""


def images(chart: Path = _CHART) -> list[str]:
    """Return the images of the chart's default values, and of the gateway, each once, in the order of the alphabet."""
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text())
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    found = {values["etcd"]["image"]}
    found |= {values["controlPlanes"][key] for key in ("kubeApiserverImage", "etcdImage")}
    for component in ("operator", "mcm", "gateway"):
        image = values[component]["image"]
        digest = f"@{image['digest']}" if image["digest"] else ""
        found.add(f"{image['repository'] or f'kplane-{component}'}:{image['tag'] or version}{digest}")
    return sorted(found)


def render(chart: Path = _CHART) -> str:
    """Return the text of the list."""
    return "".join(f"{image}\n" for image in images(chart))


if __name__ == "__main__":
    LIST.write_text(render())
    sys.exit(0)
