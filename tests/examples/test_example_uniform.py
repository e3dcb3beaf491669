"""Example of a uniform ConfigMap: its program with two real API servers."""

from __future__ import annotations

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.objects import or_none

pytestmark = pytest.mark.integration

DATA = {"colour": "green", "level": "3"}


@pytest.fixture
async def fleet(client, api_server, clean_api_server, tmp_path):
    """Clients of two clusters, and the directory `clusters` with the kubeconfig of the first cluster."""
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "home.kubeconfig").write_bytes(api_server.admin_kubeconfig.read_bytes())
    async with Client(ClusterConfig.load(clean_api_server.kubeconfig), field_manager="kplane") as away:
        yield client, away
    await or_none(client.delete(CONFIG_MAPS, "settings", namespace="default"))


async def test_config_map_is_created_and_restored_in_each_cluster(
    fleet, clean_api_server, tmp_path, running, eventually
):
    home, away = fleet

    async def settings():
        config_maps = [await or_none(item.get(CONFIG_MAPS, "settings", namespace="default")) for item in (home, away)]
        return [item and item["data"] for item in config_maps]

    async with running("uniform.py", "clusters"):
        await eventually(settings, lambda found: found == [DATA, None])
        joined = tmp_path / "clusters" / "away.kubeconfig"
        joined.write_bytes(clean_api_server.kubeconfig.read_bytes())
        await eventually(settings, lambda found: found == [DATA, DATA])
        await home.patch(CONFIG_MAPS, "settings", {"data": {"colour": "red", "size": "1"}}, namespace="default")
        await away.delete(CONFIG_MAPS, "settings", namespace="default")
        await eventually(settings, lambda found: found == [DATA, DATA])
