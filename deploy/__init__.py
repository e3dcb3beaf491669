"""What an installation consists of, besides the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["rbac_manifests"]

_ORDER = ("namespace.yaml", "operator.yaml", "mcm.yaml")


def rbac_manifests() -> list[dict[str, Any]]:
    """Return the namespace, the two identities and all that they may do, in an order in which they can be created."""
    directory = Path(__file__).parent / "rbac"
    return [document for name in _ORDER for document in yaml.safe_load_all((directory / name).read_text())]
