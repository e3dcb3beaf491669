"""The CustomResourceDefinitions of kplane, generated from the models in `api`."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

__all__ = ["manifests"]


def manifests() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinition manifests, ordered by file name."""
    files = sorted(
        (file for file in resources.files(__name__).iterdir() if file.name.endswith(".yaml")), key=lambda f: f.name
    )
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
