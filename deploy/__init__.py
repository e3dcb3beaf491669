"""What an installation consists of, besides the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["rbac_manifests"]


def rbac_manifests(*, pods: bool = False) -> list[dict[str, Any]]:
    """Return the namespace, the two identities and all that they may do, in an order in which they can be created.

    `pods` adds what the operator needs where components run as pods.
    """
    names = ["namespace.yaml", "operator.yaml", *(["operator-pods.yaml"] if pods else []), "mcm.yaml"]
    directory = Path(__file__).parent / "rbac"
    return [document for name in names for document in yaml.safe_load_all((directory / name).read_text())]
