"""Restores of snapshots. They run as jobs, so that a reconcile never waits for a file."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import Mock

import pyrage
import pytest
from typing_extensions import override

from kplane.api import ControlPlane, ControlPlaneClass
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backup.archive import Readable
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.snapshots import restoring
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.restoring import SnapshotRestorer
from kplane.controlplane_operator.snapshots.saving import save_snapshot
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import Client, Compacted, DataError, KeyValue, NoRoom, Page

KEY = pyrage.x25519.Identity.generate()
NAME = "controlplane-acme-uid.age"
ORIGINAL = "5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11"
KEYS = {"client-ca.key": b"the key"}


class Slow(Volume):
    """Opens no file for reading until it is released."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.released = threading.Event()

    @override
    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Readable]:
        self.released.wait()
        with super().reader(name) as file:
            yield file


class OnePage(Client):
    def __init__(self) -> None:
        pass

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        yield Page(9, (KeyValue(f"{prefix}key".encode(), b"value", 1),))


class Keys:
    """Fake of `TenantKeys`, which keeps the keys of the authorities in the context."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def exist(self, control_plane: ControlPlane) -> bool:
        return self._context.keys is not None

    async def restore(self, control_plane: ControlPlane, *, data: dict[str, bytes]) -> None:
        self._context.keys = data


class Operator:
    """The parts of the operator that a restorer uses."""

    namespace = "kplane-system"

    def __init__(self) -> None:
        self.keys: dict[str, bytes] | None = None
        self.woken: asyncio.Queue[Any] = asyncio.Queue()
        self.client = self
        self.triggers = SimpleNamespace(control_planes=SimpleNamespace(add=self.woken.put_nowait))

    async def get(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any]:
        return {"data": {"identity": base64.b64encode(str(KEY).encode()).decode()}}


async def test_restore_of_keys_runs_as_job_and_reports_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of a large file takes longer than a reconcile may take."""
    monkeypatch.setattr(restoring, "TenantKeys", Keys)
    storage = SnapshotStorage(Volume(tmp_path), [KEY.to_public()])
    header = {"keys": {name: base64.b64encode(content).decode() for name, content in KEYS.items()}}
    saved = await save_snapshot(Source(OnePage(), "/registry/", header), to=storage, name=NAME)
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "uid": "1"},
            "spec": {
                "mode": "Dedicated",
                "source": {"snapshotRef": {"name": "ashes"}, "identitySecretRef": {"name": "identity"}},
            },
            "status": {"restore": {"snapshot": "ashes", "location": NAME, "sha256": saved.sha256, "beginsAt": 9}},
        }
    )
    volume, operator = Slow(tmp_path), Operator()
    restorer: Any = SnapshotRestorer(
        operator,  # type: ignore[arg-type]
        jobs=SnapshotJobs(),
        storage=SnapshotStorage(volume, []),
        sources=operator,  # type: ignore[arg-type]
    )

    async def told() -> tuple[Reason, str]:
        with pytest.raises(ConditionError) as caught:
            async with asyncio.timeout(20):
                await restorer.restore_keys(control_plane)
        return caught.value.reason, caught.value.message

    try:
        for _ in range(2):
            assert await told() == (Reason.PROVISIONING, "restoring the keys of snapshot ashes")
    finally:
        volume.released.set()
    assert await operator.woken.get() == "acme"
    await restorer.restore_keys(control_plane)
    assert operator.keys == KEYS

    # A failure stays the reason while the next attempt runs.
    operator.keys, archive = None, (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(b"another file")
    assert (await told())[0] is Reason.PROVISIONING
    await operator.woken.get()
    failure = await told()
    assert (failure[0], failure[1].partition(": ")[0]) == (Reason.RESTORE_FAILED, "failed to restore snapshot ashes")
    (tmp_path / NAME).write_bytes(archive)
    assert await told() == failure
    await operator.woken.get()
    await restorer.restore_keys(control_plane)
    assert operator.keys == KEYS

    # A successful restore clears the failure.
    operator.keys = None
    assert (await told())[0] is Reason.PROVISIONING
    await operator.woken.get()


class Etcd:
    """Connection to an etcd without a copy."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture
def empty_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any, **__: Any) -> bool:
        return False

    monkeypatch.setattr(restoring, "Client", Etcd)
    for call in ("claim", "is_copy"):
        monkeypatch.setattr(restoring, call, nothing)


@pytest.mark.usefixtures("empty_etcd")
async def test_clone_stops_after_three_attempts_that_etcd_outran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "copy", "uid": "2"},
            "spec": {"mode": "Virtual", "source": {"controlPlaneRef": {"name": "acme"}, "clone": True}},
        }
    )
    operator = Operator()
    restorer: Any = SnapshotRestorer(
        operator,  # type: ignore[arg-type]
        jobs=SnapshotJobs(),
        storage=SnapshotStorage(Volume(tmp_path), []),
        sources=operator,  # type: ignore[arg-type]
    )
    errors: list[Exception] = [
        *(Compacted("etcd has compacted revision 7") for _ in range(2)),
        # Another failure in between begins the count again.
        DataError("etcd does not answer"),
        *(Compacted("etcd has compacted revision 7") for _ in range(3)),
    ]
    attempts = 0

    async def write(*_: Any, **__: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise errors.pop(0)

    monkeypatch.setattr(restorer, "_write", write)

    async def restore() -> str:
        with pytest.raises(ConditionError) as caught:
            await restorer.restore_data(control_plane, endpoint="", credentials=None, prefix="/clusters/copy/")
        return caught.value.message

    while errors:
        await restore()
        async with asyncio.timeout(20):
            await operator.woken.get()
        message = await restore()
    for _ in range(3):
        assert await restore() == message
    assert attempts == 6
    assert "3 times, etcd compacted the revision" in message
    assert "no attempt follows. Give etcd and the operator more processor time" in message

    # A new control plane of the same name has another uid, and the removal of the former one forgets its attempts.
    restorer.forget("2")
    errors.append(DataError("etcd does not answer"))
    await restore()
    async with asyncio.timeout(20):
        await operator.woken.get()
    assert attempts == 7


class Tenant(Client):
    """Etcd of a control plane with a Lease, and with an object that the Lease owns."""

    def __init__(self) -> None:
        self.lease, self.owned = str(uuid.uuid4()), str(uuid.uuid4())

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        owned = {"uid": self.owned, "ownerReferences": [{"uid": self.lease}]}
        objects = {
            "leases/default/held": {"metadata": {"uid": self.lease}},
            "configmaps/default/of-lease": {"metadata": owned},
        }
        items = [KeyValue(f"{prefix}{key}".encode(), json.dumps(obj).encode(), 1) for key, obj in objects.items()]
        yield Page(9, tuple(items))


@pytest.mark.usefixtures("empty_etcd")
async def test_event_cloned_counts_references_to_omitted_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, written, events = Operator(), dict[bytes, bytes](), list[tuple[str, str]]()
    tenant = Tenant()

    @contextlib.asynccontextmanager
    async def opened(_: ControlPlane) -> AsyncIterator[Source]:
        yield Source(tenant, "/registry/", {})

    async def write_copy(_: Any, groups: AsyncIterator[list[tuple[bytes, bytes]]], *__: Any, **___: Any) -> bool:
        async for pairs in groups:
            written.update(pairs)
        return True

    async def count(*_: Any) -> Any:
        return SimpleNamespace(count=len(written))

    async def room(*_: Any, **__: Any) -> None:
        pass

    for name, call in {
        "write_copy": write_copy,
        "digest": count,
        "discard_unfinished": room,
        "check_room": room,
    }.items():
        monkeypatch.setattr(restoring, name, call)
    original = {"metadata": {"name": "acme", "uid": ORIGINAL}, "spec": {}}
    operator.stores = SimpleNamespace(control_planes={("", "acme"): original}, classes=Mock())  # type: ignore[attr-defined]
    operator.events = Mock(record=lambda _, *, reason, message: events.append((reason, message)))  # type: ignore[attr-defined]
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "copy", "uid": str(uuid.uuid4())},
            "spec": {"mode": "Dedicated", "source": {"controlPlaneRef": {"name": "acme"}, "clone": True}},
            "status": {"restore": {"controlPlaneUID": ORIGINAL}},
        }
    )
    restorer: Any = SnapshotRestorer(
        operator,  # type: ignore[arg-type]
        jobs=SnapshotJobs(),
        storage=SnapshotStorage(Volume(tmp_path), []),
        sources=SimpleNamespace(open=opened),  # type: ignore[arg-type]
    )
    with pytest.raises(ConditionError, match="cloning the data of control plane acme"):
        await restorer.restore_data(control_plane, endpoint="", credentials=None, prefix="/registry/")
    async with asyncio.timeout(20):
        await operator.woken.get()
    message = "cloned 1 keys of control plane acme, without 1 references to owners that a clone leaves out"
    assert events == [("Cloned", message)]
    assert json.loads(written[b"configmaps/default/of-lease"])["metadata"].get("ownerReferences") in (None, [])


def cloning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, control_plane_class: ControlPlaneClass | None = None
) -> tuple[Operator, Any]:
    """Return an operator and its restorer for a clone of acme, whose only object has 5 MiB."""
    operator = Operator()

    @contextlib.asynccontextmanager
    async def opened(_: ControlPlane) -> AsyncIterator[Source]:
        yield Source(Large(), "/registry/", {})

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(restoring, "discard_unfinished", nothing)
    original = {"metadata": {"name": "acme", "uid": ORIGINAL}, "spec": {}}
    operator.stores = SimpleNamespace(  # type: ignore[attr-defined]
        control_planes={("", "acme"): original}, classes=SimpleNamespace(read=lambda *_: control_plane_class)
    )
    restorer: Any = SnapshotRestorer(
        operator,  # type: ignore[arg-type]
        jobs=SnapshotJobs(),
        storage=SnapshotStorage(Volume(tmp_path), []),
        sources=SimpleNamespace(open=opened),  # type: ignore[arg-type]
    )
    return operator, restorer


class Large(Client):
    """Etcd of a control plane with a large object."""

    def __init__(self) -> None:
        pass

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        value = json.dumps({"metadata": {"uid": str(uuid.uuid4())}, "data": "x" * (5 << 20)}).encode()
        yield Page(9, (KeyValue(f"{prefix}configmaps/default/large".encode(), value, 1),))


async def failed_clone(operator: Operator, restorer: Any) -> str:
    """Return the message of the condition after an attempt to clone acme."""
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "copy", "uid": str(uuid.uuid4())},
            "spec": {
                "mode": "Virtual",
                "classRef": {"name": "small"},
                "source": {"controlPlaneRef": {"name": "acme"}, "clone": True},
            },
            "status": {"restore": {"controlPlaneUID": ORIGINAL}},
        }
    )

    async def clone() -> str:
        with pytest.raises(ConditionError) as caught:
            await restorer.restore_data(control_plane, endpoint="", credentials=None, prefix="/clusters/copy/")
        return caught.value.message

    assert await clone() == "cloning the data of control plane acme"
    async with asyncio.timeout(20):
        await operator.woken.get()
    return await clone()


@pytest.mark.usefixtures("empty_etcd")
async def test_clone_fails_if_data_exceed_quota_of_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ControlPlaneClass.model_validate(
        {"metadata": {"name": "small"}, "spec": {"virtual": {"storage": {"quota": "1Mi"}}}}
    )
    message = await failed_clone(*cloning(tmp_path, monkeypatch, control_plane_class=small))
    assert "bytes, and its class allows 1048576 in the shared etcd: raise spec.virtual.storage.quota" in message


@pytest.mark.usefixtures("empty_etcd")
async def test_clone_fails_before_it_fills_the_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    async def check_room(_: Any, *, size: int) -> None:
        sizes.append(size)
        raise NoRoom("failed to copy the data: etcd has no room")

    monkeypatch.setattr(restoring, "check_room", check_room)
    message = await failed_clone(*cloning(tmp_path, monkeypatch))
    assert "failed to copy the data: etcd has no room" in message
    assert len(sizes) == 1
    assert 5 << 20 < sizes[0] < 6 << 20


@pytest.mark.usefixtures("empty_etcd")
async def test_restore_fails_before_it_fills_the_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, sizes = Operator(), list[int]()

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    async def check_room(_: Any, *, size: int) -> None:
        sizes.append(size)
        raise NoRoom("failed to copy the data: etcd has no room")

    monkeypatch.setattr(restoring, "discard_unfinished", nothing)
    monkeypatch.setattr(restoring, "check_room", check_room)
    snapshot = {"metadata": {"name": "ashes", "uid": "2"}, "spec": {}, "status": {"bytes": 5 << 20}}
    operator.stores = SimpleNamespace(  # type: ignore[attr-defined]
        snapshots={("", "ashes"): snapshot}, classes=SimpleNamespace(read=lambda *_: None)
    )
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "uid": "1"},
            "spec": {
                "mode": "Dedicated",
                "source": {"snapshotRef": {"name": "ashes"}, "identitySecretRef": {"name": "identity"}},
            },
            "status": {"restore": {"snapshot": "ashes", "location": NAME, "sha256": "0"}},
        }
    )
    restorer: Any = SnapshotRestorer(
        operator,  # type: ignore[arg-type]
        jobs=SnapshotJobs(),
        storage=SnapshotStorage(Volume(tmp_path), []),
        sources=operator,  # type: ignore[arg-type]
    )
    with pytest.raises(ConditionError, match="restoring the data of snapshot ashes"):
        await restorer.restore_data(control_plane, endpoint="", credentials=None, prefix="/registry/")
    async with asyncio.timeout(20):
        await operator.woken.get()
    with pytest.raises(ConditionError, match="etcd has no room"):
        await restorer.restore_data(control_plane, endpoint="", credentials=None, prefix="/registry/")
    assert sizes == [5 << 20]


@pytest.mark.usefixtures("empty_etcd")
async def test_restore_fails_if_data_exceed_quota_of_class(tmp_path: Path) -> None:
    operator = Operator()
    snapshot = {"metadata": {"name": "ashes", "uid": "2"}, "spec": {}, "status": {"bytes": 5 << 20}}
    control_plane_class = ControlPlaneClass.model_validate(
        {"metadata": {"name": "small"}, "spec": {"virtual": {"storage": {"quota": "1Mi"}}}}
    )
    operator.stores = SimpleNamespace(  # type: ignore[attr-defined]
        snapshots={("", "ashes"): snapshot}, classes=SimpleNamespace(read=lambda *_: control_plane_class)
    )
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "uid": "1"},
            "spec": {
                "mode": "Virtual",
                "classRef": {"name": "small"},
                "source": {"snapshotRef": {"name": "ashes"}, "identitySecretRef": {"name": "identity"}},
            },
            "status": {"restore": {"snapshot": "ashes", "location": NAME, "sha256": "0"}},
        }
    )
    restorer = SnapshotRestorer(
        operator,  # type: ignore[arg-type]
        jobs=SnapshotJobs(),
        storage=SnapshotStorage(Volume(tmp_path), []),
        sources=operator,  # type: ignore[arg-type]
    )

    async def restore() -> None:
        credentials: Any = None
        await restorer.restore_data(control_plane, endpoint="", credentials=credentials, prefix="/clusters/acme/")

    with pytest.raises(ConditionError, match="restoring the data of snapshot ashes"):
        await restore()
    async with asyncio.timeout(20):
        await operator.woken.get()
    with pytest.raises(ConditionError, match=r"it has 5242880 bytes, and its class allows 1048576 in the shared etcd"):
        await restore()
