"""Import of snapshots from the bucket after the loss of their management cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyrage
import pytest

from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.backup.objects import collect
from kplane.controlplane_operator.backup.storage import Bucket
from kplane.controlplane_operator.controlplanes import restored
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS
from kplane.embedded.daemon import start_cluster
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.workloads import end_processes

from .conftest import Field, clean, running_operator

pytestmark = pytest.mark.integration

KEY = pyrage.x25519.Identity.generate()
CONFIG_MAP = {"metadata": {"name": "precious", "namespace": "default"}, "data": {"value": "42"}}
LATER = "0e7a4f0e-90d7-4c9e-8f0c-4f4e2c0c8a11"
FORGED = "controlplane-forged-5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11"

Operator = Callable[..., contextlib.AbstractAsyncContextManager[str]]


@contextlib.asynccontextmanager
async def management(
    binaries: Binaries, eventually: Any, hold_port: Callable[[], int], namespaces_go_at_once: Any
) -> AsyncIterator[tuple[Field, Operator]]:
    """Run a new management cluster, and yield a context manager that runs its operator. Clean up both at the end."""
    state = Path(tempfile.mkdtemp(prefix="kplane-operator-"))
    try:
        # The embedded cluster runs its own event loop.
        cluster = start_cluster(binaries, operators=False)
        handle = await asyncio.to_thread(cluster.__enter__)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, cluster.__exit__, None, None, None)
            config = ClusterConfig.load(handle.admin_kubeconfig)
            async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
                yield (
                    Field(client, handle, state, eventually),
                    lambda **given: running_operator(handle, state, port=hold_port(), **given),
                )
    finally:
        await end_processes(state, grace_seconds=2.0)
        shutil.rmtree(state, ignore_errors=True)


async def test_snapshot_in_bucket_is_imported_by_a_new_management_cluster(
    bucket: tuple[str, Path],
    binaries: Binaries,
    eventually: Any,
    hold_port: Callable[[], int],
    namespaces_go_at_once: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The restore writes once for each unknown revision: keep their number low.
    monkeypatch.setattr(restored, "_UNKNOWN_IN_SHARED_ETCD", 1000)
    url, files = bucket
    settings = {
        "snapshot_bucket": "s3://backups/kplane",
        "snapshot_bucket_endpoint": url,
        "snapshot_bucket_region": "a",
        "snapshot_bucket_credentials": files,
        "snapshot_recipient": (str(KEY.to_public()),),
    }
    storage = Bucket("s3://backups/kplane", endpoint=url, region="a", credentials=files)
    around = (binaries, eventually, hold_port, namespaces_go_at_once)

    async with management(*around) as (field, operator), operator(snapshots=settings):
        await field.create("ControlPlane", "acme", mode="Virtual")
        await field.becomes("ControlPlane", "acme", "Reconciled")
        async with Client(await field.tenant("acme"), field_manager="kplane") as tenant:
            uid = (await tenant.create(CONFIG_MAPS, CONFIG_MAP))["metadata"]["uid"]
        await field.create("ControlPlaneSnapshot", "daily", controlPlaneRef={"name": "acme"})
        saved = (await field.becomes("ControlPlaneSnapshot", "daily", "Saved"))["status"]
        # The backup of the installation has the snapshot object, for import by another cluster.
        await field.client.create(SECRETS, {"metadata": {"name": "etcd", "namespace": "kplane-system"}})
        objects = [obj async for obj in collect(field.client, namespace="kplane-system", etcd_secret="etcd")]
        backup = next(obj for obj in objects if obj["kind"] == "ControlPlaneSnapshot")
        assert backup["metadata"]["annotations"] == {IMPORTED_FROM_ANNOTATION: saved["location"]}
        assert backup["spec"]["deletionPolicy"] == "Retain"
    entry = saved["location"].replace(".age", ".json")
    assert json.loads(storage_text(storage, entry))["sha256"] == saved["sha256"]
    # Foreign files in the bucket do not block the import.
    for name in (f"{FORGED}.json", f"{FORGED}.age"):
        with storage.writer(name) as written:
            written.write(b"[" * 50_000)

    async with management(*around) as (field, operator):
        async with operator(snapshots=settings):
            imported = await field.becomes("ControlPlaneSnapshot", "daily", "Imported")
            for name in ("location", "sha256", "revision", "keys", "controlPlaneUID", "kubernetesVersion"):
                assert imported["status"][name] == saved[name]
            identity = {"identity": base64.b64encode(f"{KEY}\n".encode()).decode()}
            metadata = {"name": "identity", "namespace": "kplane-system"}
            await field.client.apply(SECRETS, {"metadata": metadata, "data": identity}, force=True)
            source = {"snapshotRef": {"name": "daily"}, "identitySecretRef": {"name": "identity"}}
            await field.create("ControlPlane", "acme", mode="Virtual", source=source, deletionPolicy="Destroy")
            await field.becomes("ControlPlane", "acme", "Reconciled")
            async with Client(await field.tenant("acme"), field_manager="kplane") as tenant:
                config_map = await tenant.get(CONFIG_MAPS, "precious", namespace="default")
                assert (config_map["metadata"]["uid"], config_map["data"]) == (uid, {"value": "42"})
                # The new shared etcd has lower revisions, while clients may have seen revisions after the snapshot's.
                assert int((await tenant.list(CONFIG_MAPS)).resource_version) >= saved["revision"] + 1000
            await field.client.delete(CONTROL_PLANE_SNAPSHOTS, "daily")
            await field.gone(CONTROL_PLANE_SNAPSHOTS, "daily")
            assert saved["location"] in storage.files()
            await clean(field)

        # The next operator reads the bucket at once, and does not import a deleted snapshot again.
        later = json.loads(storage_text(storage, entry)) | {"name": "later", "uid": LATER}
        for name, content in ((".json", json.dumps(later).encode()), (".age", b"age")):
            with storage.writer(f"controlplane-later-{LATER}{name}") as written:
                written.write(content)
        async with operator(snapshots=settings):
            await field.becomes("ControlPlaneSnapshot", "later", "Imported")
            names = [obj["metadata"]["name"] for obj in (await field.client.list(CONTROL_PLANE_SNAPSHOTS)).items]
            assert names == ["later"]
            # Policy Destroy makes the deletion delete the file too.
            await field.client.patch(CONTROL_PLANE_SNAPSHOTS, "later", {"spec": {"deletionPolicy": "Destroy"}})
            await field.client.delete(CONTROL_PLANE_SNAPSHOTS, "later")
            await field.gone(CONTROL_PLANE_SNAPSHOTS, "later")
        assert not [name for name in storage.files() if "later" in name]
        assert {saved["location"], entry} < set(storage.files())


def storage_text(storage: Bucket, name: str) -> bytes:
    with storage.reader(name) as file:
        return file.read()
