"""`python -m kplane.controlplane_operator.uninstall`: fails while control planes exist.

Helm runs the command before it deletes a release: without the operator and the shared etcd, control planes would be
lost.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError

__all__ = ["main", "refusal"]

_NAMED: Final = 5
_ANYWAY: Final = "To uninstall kplane without this check, run helm uninstall with --no-hooks"


def main() -> int:
    """Run the command; return 0 if kplane can be uninstalled, and 1 otherwise."""
    try:
        message = asyncio.run(_asked())
    except ProviderError as error:
        message = f"failed to list control planes: {error}. {_ANYWAY}."
    if message is None:
        return 0
    sys.stderr.write(f"{message}\n")
    return 1


async def _asked() -> str | None:
    async with Client(ClusterConfig.in_cluster(), field_manager="kplane") as client:
        return await refusal(client)


async def refusal(client: Client) -> str | None:
    """Return why kplane is not uninstalled, with the remedy; None if no control plane exists. Raises ProviderError."""
    try:
        control_planes = (await client.list(CONTROL_PLANES, metadata_only=True)).items
    except NotFound:
        return None  # the kind is gone, and with it every control plane
    if not control_planes:
        return None
    names = [control_plane["metadata"]["name"] for control_plane in control_planes]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"kplane is not uninstalled, because there are control planes: {', '.join(names[:_NAMED])}{more}. Delete them"
        " first, while the operator runs: kubectl delete controlplanes --all. docs/how-to/uninstall.md says what"
        f" becomes of their data. {_ANYWAY}: virtual control planes then lose their etcd, and no operator maintains the"
        " others. To keep the release, run: helm rollback. Until then Helm upgrades nothing, because it calls the"
        " release uninstalling."
    )


if __name__ == "__main__":
    sys.exit(main())
