"""Search for the programs of kplane of a management cluster."""

from __future__ import annotations

from kplane.cli.programs.base import Programs
from kplane.cli.programs.pods import Pods
from kplane.cli.programs.processes import Processes
from kplane.provider import Client

__all__ = ["find_programs"]


async def find_programs(client: Client) -> Programs | None:
    """Return the programs: processes of this machine, or else pods of the cluster; None if there are none.

    Raises `kplane.provider.ProviderError` if the API server refuses or does not answer.
    """
    return Processes.of(client.config.server) or await Pods.of(client)
