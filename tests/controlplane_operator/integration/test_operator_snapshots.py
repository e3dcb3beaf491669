"""Snapshots of real control planes by a real operator: creation, content, retention, restore, deletion."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyrage
import pytest

from e2e.documents import ON_PROCESSES, blocks, document
from e2e.reader import Reader
from kplane.api.names import FINALIZER, SCHEDULED_AT_ANNOTATION, SCHEDULED_FOR_ANNOTATION, SNAPSHOT_FILE_LABEL
from kplane.binaries.programs import Binaries
from kplane.components.names import apiserver_name, etcd_name
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_SNAPSHOTS, CONTROL_PLANES
from kplane.controlplane_operator.snapshots import reconciler as snapshot_reconciler
from kplane.controlplane_operator.snapshots import restoring
from kplane.data import Archived, ArchiveReader
from kplane.provider import Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    REPLICA_SETS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from kplane.provider.errors import Expired
from kplane.workloads import Component, ProcessRuntime
from tests.controlplane_operator.controller_manager import running_controllers

from .conftest import Field, clean, owner_of

pytestmark = pytest.mark.integration

NODES = Resource("v1", "Node", "nodes", namespaced=False)
KEY = pyrage.x25519.Identity.generate()
CONFIG_MAP = {"metadata": {"name": "precious", "namespace": "default"}, "data": {"value": "42"}}
SECRET = {"metadata": {"name": "hidden", "namespace": "default"}, "stringData": {"value": "43"}}


def opened(path: Path) -> tuple[Archived, dict[bytes, bytes]]:
    decrypted = io.BytesIO()
    with path.open("rb") as file:
        pyrage.decrypt_io(file, decrypted, [KEY])
    reader = ArchiveReader()
    pairs = dict(reader.feed(decrypted.getvalue()))
    return reader.end(), pairs


def message(obj: dict[str, Any]) -> str:
    return "".join(item["message"] for item in obj["status"]["conditions"] if item["type"] == "Ready")


async def follow(client: Client, *, since: str) -> None:
    async with asyncio.timeout(60):
        async for _ in client.watch(CONFIG_MAPS, resource_version=since):
            pass


async def completed(field: Field, name: str) -> dict[str, Any]:
    return await field.becomes("ControlPlaneSnapshot", name, "Saved")


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
async def test_snapshot_saves_data_and_keys_of_control_plane(
    mode: str,
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed write is retried, also by the next operator. The deletion of the object deletes the file."""
    field, operator = mortal_field
    settings = {"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}
    name = f"saved-{mode.lower()}"
    async with operator(snapshots=settings):
        await field.create("ControlPlane", name, mode=mode, deletionPolicy="Destroy")
        await field.becomes("ControlPlane", name, "Reconciled")
        async with Client(await field.tenant(name), field_manager="kplane") as tenant:
            uid = (await tenant.create(CONFIG_MAPS, CONFIG_MAP))["metadata"]["uid"]

        # The operator reports and retries a failed write.
        monkeypatch.setattr(snapshot_reconciler, "_FIRST_RETRY_SECONDS", 0.1)
        written = Volume.writer

        def refused(self: Volume, name: str) -> Any:
            raise OSError("the disk is broken")

        monkeypatch.setattr(Volume, "writer", refused)
        await field.create("ControlPlaneSnapshot", name, controlPlaneRef={"name": name})
        failed = await field.becomes("ControlPlaneSnapshot", name, "SnapshotFailed")
        assert failed["status"]["phase"] == "Failed"
        assert "the disk is broken" in failed["status"]["conditions"][0]["message"]

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


async def test_schedule_of_class_creates_and_deletes_snapshots(
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]], tmp_path: Path
) -> None:
    field, operator = mortal_field
    settings = {"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}
    async with operator(snapshots=settings):
        await field.create("ControlPlaneClass", "saved", deletionPolicy="Destroy")
        await field.create("ControlPlane", "regular", classRef={"name": "saved"})
        uid = (await field.becomes("ControlPlane", "regular", "Reconciled"))["metadata"]["uid"]
        # Two scheduled snapshots of former years, and a manual snapshot.
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
                snapshot["metadata"]["name"]
                for snapshot in (await field.client.list(CONTROL_PLANE_SNAPSHOTS)).items
                if (snapshot.get("status") or {}).get("phase") == "Completed"
            )

        # The operator makes up for this year's missed snapshot, and deletes the former scheduled snapshots.
        snapshot_name = f"regular-{datetime.now(UTC).year}01010000"
        await completed(field, snapshot_name)
        await field.gone(CONTROL_PLANE_SNAPSHOTS, "regular-2021")
        assert await field.settles(left) == ["by-hand", snapshot_name]
        assert len(list(tmp_path.glob("controlplane-*.age"))) == 2

        for name in ("by-hand", snapshot_name):
            await field.client.delete(CONTROL_PLANE_SNAPSHOTS, name)
            await field.gone(CONTROL_PLANE_SNAPSHOTS, name)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("former", "mode"),
    [
        ("Virtual", "Dedicated"),
        ("Virtual", "Virtual"),
        pytest.param("Dedicated", "Dedicated", marks=pytest.mark.slow),
        pytest.param("Dedicated", "Virtual", marks=pytest.mark.slow),
    ],
)
async def test_destroyed_control_plane_is_restored_from_snapshot(
    former: str,
    mode: str,
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The restored control plane has the same uids, tokens and keys, also with encryption at rest. Old watches expire.

    An interrupted restore is repeated.
    """
    field, operator = mortal_field
    settings = {"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}
    name = f"phoenix-{former}-{mode}".lower()
    sealed = {"encryptedResources": ["secrets"]}
    spec = {"classRef": {"name": name}, "deletionPolicy": "Destroy"}
    async with operator(snapshots=settings):
        await field.create("ControlPlaneClass", name, apiServer=sealed)
        await field.create("ControlPlane", name, mode=former, **spec)
        await field.becomes("ControlPlane", name, "Reconciled")
        admin = await field.tenant(name)
        async with Client(admin, field_manager="kplane") as tenant:
            original = await tenant.create(CONFIG_MAPS, CONFIG_MAP)
            secret = await tenant.create(SECRETS, SECRET)
            token = (await owner_of(admin)).token
            await field.create("ControlPlaneSnapshot", name, controlPlaneRef={"name": name})
            saved = (await completed(field, name))["status"]
            assert opened(tmp_path / saved["location"])[1][b"secrets/default/hidden"].startswith(b"k8s:enc:")
            # Clients have seen resource versions later than the snapshot.
            for number in range(20):
                last = await tenant.patch(CONFIG_MAPS, "precious", {"data": {"late": str(number)}}, namespace="default")
        await field.client.delete(CONTROL_PLANES, name)
        await field.gone(CONTROL_PLANES, name)

        source = {"snapshotRef": {"name": name}, "identitySecretRef": {"name": "identity"}}
        await field.create("ControlPlane", name, mode=mode, **spec, source=source)
        failed = await field.becomes("ControlPlane", name, "RestoreFailed")
        assert "there is no Secret kplane-system/identity" in message(failed)
        await keep_identity(field)

    described: list[tuple[str, bool]] = []
    apply = ProcessRuntime.apply

    async def noted(runtime: ProcessRuntime, component: Component) -> None:
        described.append((component.name, component.prepare is not None))
        await apply(runtime, component)

    monkeypatch.setattr(ProcessRuntime, "apply", noted)
    written = restoring.write_copy

    # A killed operator leaves a part of the data, without the mark that the data are complete.
    async def part(client: Any, groups: Any, *given: Any, **named: Any) -> Any:
        async def cut_off() -> Any:
            async for group in groups:
                yield group
            raise OSError("killed")

        return await written(client, cut_off(), *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "write_copy", part)
        async with operator(snapshots=settings):
            interrupted = await field.becomes("ControlPlane", name, "RestoreFailed")
            while "killed" not in message(interrupted):
                interrupted = await field.becomes("ControlPlane", name, "RestoreFailed")
            assert "endpoint" not in interrupted["status"]

    async with operator(snapshots=settings):
        await field.becomes("ControlPlane", name, "Reconciled")
        admin_now = await field.tenant(name)
        assert admin_now.ca_data == admin.ca_data
        async with Client(replace(admin_now, token=token), field_manager="kplane") as tenant:
            restored = await tenant.get(CONFIG_MAPS, "precious", namespace="default")
            assert (restored["metadata"]["uid"], restored["data"]) == (original["metadata"]["uid"], {"value": "42"})
            assert (await tenant.get(SECRETS, "hidden", namespace="default"))["data"] == secret["data"]
            config_maps = await tenant.list(CONFIG_MAPS)
            assert int(config_maps.resource_version) > int(last["metadata"]["resourceVersion"]) > saved["revision"]
            with pytest.raises(Expired):
                await follow(tenant, since=last["metadata"]["resourceVersion"])
        if mode == "Dedicated":
            # The prepare step of etcd has the operator's image: a step that stays would restart etcd at each upgrade.
            began = described.index((apiserver_name(name), False))
            begins = [prepared for component, prepared in described[:began] if component == etcd_name(name)]
            assert begins[0]
            assert not begins[-1]
            assert (etcd_name(name), True) not in described[began:]
        await field.client.delete(CONTROL_PLANES, name)
        await field.gone(CONTROL_PLANES, name)
        await field.client.delete(CONTROL_PLANE_SNAPSHOTS, name)
        await field.gone(CONTROL_PLANE_SNAPSHOTS, name)
        await field.client.delete(SECRETS, "identity", namespace="kplane-system")


async def keep_identity(field: Field) -> None:
    identity = base64.b64encode(f"{KEY}\n".encode()).decode()
    metadata = {"name": "identity", "namespace": "kplane-system"}
    await field.client.apply(SECRETS, {"metadata": metadata, "data": {"identity": identity}}, force=True)


@pytest.mark.parametrize("mode", ["Virtual", pytest.param("Dedicated", marks=pytest.mark.slow)])
async def test_clone_has_new_uids_and_keys_and_the_same_objects(
    mode: str,
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]],
    tmp_path: Path,
    binaries: Binaries,
) -> None:
    """Clones of a running control plane and of a snapshot, of the other mode, without issued tokens and Leases.

    Without a volume, the operator stores the snapshot in Secrets.
    """
    field, operator = mortal_field
    settings = {"snapshot_recipient": (str(KEY.to_public()),)}
    former = "Dedicated" if mode == "Virtual" else "Virtual"
    name = f"dolly-{mode}".lower()
    async with operator(snapshots=settings):
        await keep_identity(field)
        # The clone waits for its source.
        await field.create("ControlPlane", f"{name}-1", mode=mode, deletionPolicy="Destroy", source=clone_of(name))
        waiting = await field.becomes("ControlPlane", f"{name}-1", "SourceNotReady")
        assert message(waiting) == (
            f"ControlPlane {name} cannot be the source of this control plane: it does not exist"
        )
        await field.create("ControlPlane", name, mode=former, deletionPolicy="Destroy")
        await field.becomes("ControlPlane", name, "Reconciled")
        admin = await field.tenant(name)
        await fill(admin)
        token = (await owner_of(admin)).token
        await field.becomes("ControlPlane", f"{name}-1", "Reconciled")
        # The first clone may lack objects, because the source was still being filled.
        await field.create("ControlPlaneSnapshot", name, controlPlaneRef={"name": name})
        await completed(field, name)
        source = {"snapshotRef": {"name": name}, "identitySecretRef": {"name": "identity"}, "clone": True}
        for clone, clone_source in ((f"{name}-2", clone_of(name)), (f"{name}-3", source | {"nodes": True})):
            await field.create("ControlPlane", clone, mode=mode, deletionPolicy="Destroy", source=clone_source)
            await field.becomes("ControlPlane", clone, "Reconciled")
        async with Client(admin, field_manager="kplane") as tenant:
            original = await contents(tenant)
        for number in (2, 3):
            events = (await field.client.list(EVENTS, namespace="default")).items
            told = [
                event["message"]
                for event in events
                if (event["reason"], event["involvedObject"]["name"]) == ("Cloned", f"{name}-{number}")
            ]
            assert "without 1 references to owners that a clone leaves out" in " ".join(told)
            cloned = await field.tenant(f"{name}-{number}")
            assert cloned.ca_data != admin.ca_data
            assert await field.refuses(replace(cloned, token=token))
            async with Client(cloned, field_manager="kplane") as tenant:
                copies = await contents(tenant)
                left_out = {"token", "bootstrap", "lease", "root CA"} | ({"node"} if number == 2 else set())
                assert copies.keys() == original.keys() - left_out
                for key, obj in copies.items():
                    assert obj["metadata"]["uid"] != original[key]["metadata"]["uid"]
                assert copies["set"]["metadata"]["ownerReferences"][0]["uid"] == copies["deployment"]["metadata"]["uid"]
                # The garbage collector would delete an object whose only owner is missing.
                assert "ownerReferences" not in copies["of lease"]["metadata"]
                assert copies["config"]["data"] == original["config"]["data"]
                # A change in the clone does not change the source.
                await tenant.patch(CONFIG_MAPS, "precious", {"data": {"value": "43"}}, namespace="default")
            (tmp_path / "ca.crt").write_bytes(cloned.ca_data or b"")
            publisher = "--controllers=root-ca-certificate-publisher-controller", f"--root-ca-file={tmp_path}/ca.crt"
            async with (
                running_controllers(cloned, *publisher, binaries=binaries, directory=tmp_path),
                Client(cloned, field_manager="kplane") as tenant,
            ):
                found_ca = await field.eventually(
                    lambda tenant=tenant: tenant.get(CONFIG_MAPS, "kube-root-ca.crt", namespace="default")
                )
            assert found_ca["data"]["ca.crt"].encode() == cloned.ca_data
        async with Client(admin, field_manager="kplane") as tenant:
            assert await contents(tenant) == original
        files = {"namespace": "kplane-system", "label_selector": SNAPSHOT_FILE_LABEL}
        assert (await field.client.list(SECRETS, **files)).items
        await field.client.delete(CONTROL_PLANE_SNAPSHOTS, name)
        await field.gone(CONTROL_PLANE_SNAPSHOTS, name)
        assert not (await field.client.list(SECRETS, **files)).items
        for key in (f"{name}-1", f"{name}-2", f"{name}-3", name):
            await field.client.delete(CONTROL_PLANES, key)
        for key in (f"{name}-1", f"{name}-2", f"{name}-3", name):
            await field.gone(CONTROL_PLANES, key)
        await field.client.delete(SECRETS, "identity", namespace="kplane-system")


def clone_of(name: str) -> dict[str, Any]:
    return {"controlPlaneRef": {"name": name}, "clone": True}


NAMESPACED = {
    "config": (CONFIG_MAPS, "precious"),
    "deployment": (DEPLOYMENTS, "web"),
    "set": (REPLICA_SETS, "web-1"),
    "opaque": (SECRETS, "mine"),
    "token": (SECRETS, "owners"),
    "lease": (LEASES, "held"),
    "of lease": (CONFIG_MAPS, "of-lease"),
    "root CA": (CONFIG_MAPS, "kube-root-ca.crt"),
}


async def fill(config: ClusterConfig) -> None:
    """Create objects that a clone copies, and objects that a clone leaves out."""
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    }
    described = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    async with Client(config, field_manager="kplane") as tenant:

        async def make(resource: Resource, name: str, *, namespace: str | None = "default", **body: Any) -> Any:
            metadata = {"name": name, "namespace": namespace, **body.pop("metadata", {})}
            return await tenant.create(resource, {"metadata": metadata, **body})

        await make(SERVICE_ACCOUNTS, "owner")
        deployment = await make(DEPLOYMENTS, "web", spec=described)
        owner = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "web",
            "uid": deployment["metadata"]["uid"],
            "controller": True,
        }
        await make(REPLICA_SETS, "web-1", metadata={"ownerReferences": [owner]}, spec=described)
        issued = {"annotations": {"kubernetes.io/service-account.name": "owner"}}
        await make(SECRETS, "owners", metadata=issued, type="kubernetes.io/service-account-token")
        await make(SECRETS, "bootstrap-token-abcdef", namespace="kube-system", type="bootstrap.kubernetes.io/token")
        await make(SECRETS, "mine", stringData={"a": "b"})
        lease = await make(LEASES, "held", spec={"holderIdentity": "me"})
        of_lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "held"}
        references = [{**of_lease, "uid": lease["metadata"]["uid"]}]
        await make(CONFIG_MAPS, "of-lease", metadata={"ownerReferences": references})
        await make(NODES, "worker", namespace=None)
        await make(CONFIG_MAPS, "kube-root-ca.crt", data={"ca.crt": "of the original"})
        # The last object: its presence implies the others.
        await make(CONFIG_MAPS, "precious", data={"value": deployment["metadata"]["uid"][:8]})


async def contents(tenant: Client) -> dict[str, Any]:
    objects = {}
    for key, (resource, name) in NAMESPACED.items():
        with contextlib.suppress(NotFound):
            objects[key] = await tenant.get(resource, name, namespace="default")
    with contextlib.suppress(NotFound):
        objects["bootstrap"] = await tenant.get(SECRETS, "bootstrap-token-abcdef", namespace="kube-system")
    with contextlib.suppress(NotFound):
        objects["node"] = await tenant.get(NODES, "worker")
    return objects


async def test_sleeping_source_is_cloned_and_encrypted_source_is_refused(
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]], tmp_path: Path
) -> None:
    field, operator = mortal_field
    async with operator(snapshots={"snapshot_volume": tmp_path, "snapshot_recipient": (str(KEY.to_public()),)}):
        await field.create("ControlPlaneClass", "plain", deletionPolicy="Destroy", virtual={"start": "OnDemand"})
        await field.create("ControlPlane", "sheep", classRef={"name": "plain"})
        await field.becomes("ControlPlane", "sheep", "Hibernated")
        spec = {"classRef": {"name": "plain"}, "source": clone_of("sheep")}
        await field.create("ControlPlane", "lamb", **spec, virtual={"clusterPath": "sheep"})
        await field.becomes("ControlPlane", "lamb", "ClusterPathInUse")
        await field.create("ControlPlane", "former", **spec, version="1.34.0")
        text = message(await field.becomes("ControlPlane", "former", "VersionNotAllowed"))
        assert "kube-apiserver 1.34.0 may not be able to read them" in text
        await field.create("ControlPlane", "twin", **spec)
        twin = await field.eventually(
            lambda: field.get("ControlPlane", "twin"), lambda found: "endpoint" in found.get("status", {}), timeout=120
        )
        assert "beginsAt" not in twin["status"]["restore"]
        await field.create("ControlPlaneSnapshot", "sheep", controlPlaneRef={"name": "sheep"})
        saved = await completed(field, "sheep")
        assert b"namespaces/default" in opened(tmp_path / saved["status"]["location"])[1]
        assert await field.reason("ControlPlane", "sheep") == "Hibernated"

        settings = {"encryptedResources": ["configmaps"]}
        await field.create("ControlPlaneClass", "sealed", deletionPolicy="Destroy", apiServer=settings)
        await field.create("ControlPlane", "vault", classRef={"name": "sealed"})
        await field.becomes("ControlPlane", "vault", "Reconciled")
        async with Client(await field.tenant("vault"), field_manager="kplane") as tenant:
            await tenant.create(CONFIG_MAPS, CONFIG_MAP)
        await field.create("ControlPlane", "copied", deletionPolicy="Destroy", source=clone_of("vault"))
        text = message(await field.becomes("ControlPlane", "copied", "SourceEncrypted"))
        assert text.startswith(
            "failed to clone control plane vault: configmaps/default/precious is encrypted at rest, "
        )
        await field.client.delete(CONTROL_PLANE_SNAPSHOTS, "sheep")
        await field.gone(CONTROL_PLANE_SNAPSHOTS, "sheep")


@pytest.mark.slow
async def test_documented_snapshot_commands_work(
    mortal_field: tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]], tmp_path: Path
) -> None:
    field, operator = mortal_field
    storage, directory = tmp_path / "storage", tmp_path / "reader"
    storage.mkdir()
    directory.mkdir()
    (directory / "key.txt").write_text(f"{KEY}\n")
    path = f"{field.handle.kubectl_program.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(directory), "KUBECONFIG": str(field.handle.admin_kubeconfig)}
    reader = Reader(directory, environment=environment)
    async with operator(snapshots={"snapshot_volume": storage, "snapshot_recipient": (str(KEY.to_public()),)}):
        await field.create("ControlPlaneClass", "standard", deletionPolicy="Destroy")
        await field.create("ControlPlane", "acme", classRef={"name": "standard"})
        await field.becomes("ControlPlane", "acme", "Reconciled")
        async with Client(await field.tenant("acme"), field_manager="kplane") as tenant:
            await tenant.create(CONFIG_MAPS, CONFIG_MAP)
        for name in ON_PROCESSES:
            commands = [*blocks(document(name))]
            await asyncio.to_thread(reader.follow, name, commands)
        for name in ("acme", "acme-copy", "acme-before"):
            async with Client(await field.tenant(name), field_manager="kplane") as tenant:
                await tenant.get(CONFIG_MAPS, "precious", namespace="default")
        # Clean up while an operator with the storage of the snapshots runs.
        await clean(field)
        for snapshot in (await field.client.list(CONTROL_PLANE_SNAPSHOTS)).items:
            await field.gone(CONTROL_PLANE_SNAPSHOTS, snapshot["metadata"]["name"])
