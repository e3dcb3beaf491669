"""Snapshots of real control planes, by a real operator: written, opened, kept, deleted."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyrage
import pytest

from kplane.api.names import FINALIZER, SCHEDULED_AT_ANNOTATION, SCHEDULED_FOR_ANNOTATION
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.component_names import apiserver_name, etcd_name
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_SNAPSHOTS, CONTROL_PLANES
from kplane.controlplane_operator.snapshots import reconciler as snapshot_reconciler
from kplane.controlplane_operator.snapshots import restoring
from kplane.data import Archived, ArchiveReader, write_archived
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.errors import Expired
from kplane.workloads import Component, ProcessRuntime

from .conftest import Field, owner_of

pytestmark = pytest.mark.integration

KEY = pyrage.x25519.Identity.generate()
CONFIG_MAP = {"metadata": {"name": "precious", "namespace": "default"}, "data": {"value": "42"}}


def opened(path: Path) -> tuple[Archived, dict[bytes, bytes]]:
    decrypted = io.BytesIO()
    with path.open("rb") as file:
        pyrage.decrypt_io(file, decrypted, [KEY])
    reader = ArchiveReader()
    pairs = dict(reader.feed(decrypted.getvalue()))
    return reader.end(), pairs


def message(obj: dict[str, Any]) -> str:
    return "".join(each["message"] for each in obj["status"]["conditions"] if each["type"] == "Ready")


async def follow(client: Client, *, since: str) -> None:
    async with asyncio.timeout(60):
        async for _ in client.watch(CONFIG_MAPS, resource_version=since):
            pass


async def completed(field: Field, name: str) -> dict[str, Any]:
    return await field.becomes("ControlPlaneSnapshot", name, "Saved")


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
async def test_data_and_keys_of_a_control_plane_are_saved(
    mode: str,
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once only, also if the operator ends while it writes; the file goes with its object."""
    field, operator = mortal_field
    settings = {"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}
    name = f"saved-{mode.lower()}"
    async with operator(snapshots=settings):
        await field.create("ControlPlane", name, mode=mode, deletionPolicy="Destroy")
        await field.becomes("ControlPlane", name, "Reconciled")
        async with Client(await field.tenant(name)) as tenant:
            uid = (await tenant.create(CONFIG_MAPS, CONFIG_MAP))["metadata"]["uid"]

        # What cannot be written is told, and tried again.
        monkeypatch.setattr(snapshot_reconciler, "_FIRST_RETRY_SECONDS", 0.1)
        written = Volume.writer

        def refused(self: Volume, name: str) -> Any:
            raise OSError("the disk is broken")

        monkeypatch.setattr(Volume, "writer", refused)
        await field.create("ControlPlaneSnapshot", name, controlPlaneRef={"name": name})
        told = await field.becomes("ControlPlaneSnapshot", name, "SnapshotFailed")
        assert told["status"]["phase"] == "Failed"
        assert "the disk is broken" in told["status"]["conditions"][0]["message"]

    # The next operator tries at once.
    monkeypatch.setattr(Volume, "writer", written)
    async with operator(snapshots=settings):
        saved = await completed(field, name)
        status = saved["status"]
        assert FINALIZER in saved["metadata"]["finalizers"]
        path = tmp_path / status["location"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == status["sha256"]
        assert b"precious" not in path.read_bytes()
        archived, pairs = opened(path)
        assert uid.encode() in pairs[b"configmaps/default/precious"]
        assert (archived.revision, archived.digest.count) == (status["revision"], status["keys"])
        assert set(archived.header["keys"]) >= {"client-ca.key", "etcd-ca.key", "encryption.key"}
        assert archived.header["kubernetesVersion"] == status["kubernetesVersion"]
        assert not [key for key in pairs if key.startswith((b"masterleases/", b"events/"))]

        await field.client.delete(CONTROL_PLANE_SNAPSHOTS, name)
        await field.gone(CONTROL_PLANE_SNAPSHOTS, name)
        assert not path.exists()


async def test_the_schedule_of_a_class_makes_and_deletes_snapshots(
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]], tmp_path: Path
) -> None:
    field, operator = mortal_field
    settings = {"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}
    async with operator(snapshots=settings):
        await field.create("ControlPlaneClass", "saved", deletionPolicy="Destroy")
        await field.create("ControlPlane", "regular", classRef={"name": "saved"})
        uid = (await field.becomes("ControlPlane", "regular", "Reconciled"))["metadata"]["uid"]
        # Two of former times, and one that a person made.
        for year in (2020, 2021):
            when = datetime(year, 1, 1, tzinfo=UTC).isoformat()
            annotations = {SCHEDULED_FOR_ANNOTATION: uid, SCHEDULED_AT_ANNOTATION: when}
            body = {
                "metadata": {"name": f"regular-{year}", "annotations": annotations},
                "spec": {"controlPlaneRef": {"name": "regular"}},
            }
            await field.client.create(CONTROL_PLANE_SNAPSHOTS, body)
            await completed(field, f"regular-{year}")
        await field.create("ControlPlaneSnapshot", "by-hand", controlPlaneRef={"name": "regular"})
        await completed(field, "by-hand")

        settled = {"spec": {"snapshots": {"schedule": "0 0 1 1 *", "retain": 1}}}
        await field.client.patch(CONTROL_PLANE_CLASSES, "saved", settled)

        async def left() -> list[str]:
            return sorted(
                each["metadata"]["name"]
                for each in (await field.client.list(CONTROL_PLANE_SNAPSHOTS)).items
                if (each.get("status") or {}).get("phase") == "Completed"
            )

        # The one of this year was missed, and takes the place of the others.
        made = f"regular-{datetime.now(UTC).year}01010000"
        await completed(field, made)
        await field.gone(CONTROL_PLANE_SNAPSHOTS, "regular-2021")
        assert await field.settles(left) == ["by-hand", made]
        assert len(list(tmp_path.glob("controlplane-*.age"))) == 2

        for name in ("by-hand", made):
            await field.client.delete(CONTROL_PLANE_SNAPSHOTS, name)
            await field.gone(CONTROL_PLANE_SNAPSHOTS, name)
        assert not list(tmp_path.iterdir())


async def test_a_destroyed_control_plane_is_restored_as_it_was(
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same uids, tokens and keys; a watch from before is told to begin anew; an end halfway is made up for."""
    field, operator = mortal_field
    settings = {"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}
    async with operator(snapshots=settings):
        await field.create("ControlPlane", "phoenix", mode="Dedicated", deletionPolicy="Destroy")
        await field.becomes("ControlPlane", "phoenix", "Reconciled")
        admin = await field.tenant("phoenix")
        async with Client(admin) as tenant:
            known = await tenant.create(CONFIG_MAPS, CONFIG_MAP)
            token = (await owner_of(admin)).token
            await field.create("ControlPlaneSnapshot", "ashes", controlPlaneRef={"name": "phoenix"})
            saved = (await completed(field, "ashes"))["status"]
            # Clients know later versions than the snapshot has.
            for number in range(20):
                last = await tenant.patch(CONFIG_MAPS, "precious", {"data": {"late": str(number)}}, namespace="default")
        await field.client.delete(CONTROL_PLANES, "phoenix")
        await field.gone(CONTROL_PLANES, "phoenix")

        source = {"snapshotRef": {"name": "ashes"}, "identitySecretRef": {"name": "identity"}}
        await field.create("ControlPlane", "phoenix", mode="Dedicated", deletionPolicy="Destroy", source=source)
        failed = await field.becomes("ControlPlane", "phoenix", "RestoreFailed")
        assert "there is no Secret kplane-system/identity" in message(failed)
        identity = base64.b64encode(f"{KEY}\n".encode()).decode()
        metadata = {"name": "identity", "namespace": "kplane-system"}
        await field.client.apply(SECRETS, {"metadata": metadata, "data": {"identity": identity}})

    described: list[tuple[str, bool]] = []
    apply = ProcessRuntime.apply

    async def noted(runtime: ProcessRuntime, component: Component) -> None:
        described.append((component.name, component.prepare is not None))
        await apply(runtime, component)

    monkeypatch.setattr(ProcessRuntime, "apply", noted)

    # What an operator that was killed leaves behind: a part of the data, and no word that they are complete.
    async def part(*given: Any, **named: Any) -> None:
        await write_archived(*given, **named)
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "write_archived", part)
        async with operator(snapshots=settings):
            told = await field.becomes("ControlPlane", "phoenix", "RestoreFailed")
            while "killed" not in message(told):
                told = await field.becomes("ControlPlane", "phoenix", "RestoreFailed")
            assert "endpoint" not in told["status"]

    async with operator(snapshots=settings):
        await field.becomes("ControlPlane", "phoenix", "Reconciled")
        restored = await field.tenant("phoenix")
        assert restored.ca_data == admin.ca_data
        async with Client(replace(restored, token=token)) as tenant:
            found = await tenant.get(CONFIG_MAPS, "precious", namespace="default")
            assert (found["metadata"]["uid"], found["data"]) == (known["metadata"]["uid"], {"value": "42"})
            listed = await tenant.list(CONFIG_MAPS)
            assert int(listed.resource_version) > int(last["metadata"]["resourceVersion"]) > saved["revision"]
            with pytest.raises(Expired):
                await follow(tenant, since=last["metadata"]["resourceVersion"])
        # What makes the beginning of etcd is of the operator's image: later on it would restart etcd.
        began = described.index((apiserver_name("phoenix"), False))
        begins = [prepared for name, prepared in described[:began] if name == etcd_name("phoenix")]
        assert begins[0]
        assert not begins[-1]
        assert (etcd_name("phoenix"), True) not in described[began:]
        await field.client.delete(CONTROL_PLANES, "phoenix")
        await field.gone(CONTROL_PLANES, "phoenix")
        await field.client.delete(CONTROL_PLANE_SNAPSHOTS, "ashes")
        await field.gone(CONTROL_PLANE_SNAPSHOTS, "ashes")
        await field.client.delete(SECRETS, "identity", namespace="kplane-system")
