"""Storage of snapshots in clusters of `kplane up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kplane.client import ControlPlanes
from kplane.embedded.snapshots import SNAPSHOT_KEY, SNAPSHOTS, snapshot_arguments
from kplane.provider import Client, ClusterConfig

if TYPE_CHECKING:
    from kplane.embedded.handle import Handle


def test_snapshot_arguments_keep_key_and_folder_of_directory(tmp_path: Path) -> None:
    first = snapshot_arguments(tmp_path)
    assert first == snapshot_arguments(tmp_path)
    assert (tmp_path / SNAPSHOT_KEY).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / SNAPSHOTS).stat().st_mode & 0o777 == 0o700
    assert first[0] == f"--snapshot-volume={tmp_path / SNAPSHOTS}"


@pytest.mark.integration
async def test_snapshot_of_a_local_cluster_completes(management_cluster: Handle) -> None:
    async with Client(ClusterConfig.load(management_cluster.admin_kubeconfig), field_manager="kplane") as client:
        control_planes = ControlPlanes(client)
        await control_planes.create("snapped", spec={"deletionPolicy": "Destroy"})
        await control_planes.wait("snapped", timeout_seconds=120.0)
        snapshot = await control_planes.snapshot("snapped", of="snapped", wait=True, timeout_seconds=120.0)
        assert snapshot.status.location is not None
        assert (management_cluster.directory / SNAPSHOTS / snapshot.status.location).is_file()
        await control_planes.delete_snapshot("snapped")
        await control_planes.delete("snapped")
