"""What an installation consists of, besides the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["rbac_manifests"]


def rbac_manifests(*, pods: bool = False) -> list[dict[str, Any]]:
    """Return the namespace, the two identities and all that they may do, in an order in which they can be created.

    `pods` says whether components run as pods, or as processes: the operator needs something else for each.
    """
    names = ["namespace.yaml", "operator.yaml", f"operator-{'pods' if pods else 'processes'}.yaml", "mcm.yaml"]
    directory = Path(__file__).parent / "rbac"
    return [document for name in names for document in yaml.safe_load_all((directory / name).read_text())]
