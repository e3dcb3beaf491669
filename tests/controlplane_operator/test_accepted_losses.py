"""Revisions after an accepted loss of data: above all revisions that clients saw, so that their watches get 410."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Self

import pytest

from kplane.api import ControlPlane
from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends import dedicated, virtual
from kplane.controlplane_operator.backends.dedicated import DedicatedProvisioner
from kplane.controlplane_operator.backends.members import EtcdWithoutData, Founding
from kplane.controlplane_operator.backends.served_data import UNSEEN_REVISIONS, revision_after_loss
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data.errors import RevisionTooFar
from kplane.data.revision import MOST_RAISED
from kplane.workloads import Phase

SEEN = 9000 + UNSEEN_REVISIONS
"""Upper bound of the revisions that clients of the control plane have seen."""


def control_plane(*, accepted: bool = True, **status: Any) -> ControlPlane:
    annotations = {ACCEPT_DATA_LOSS_ANNOTATION: "5f0c"} if accepted else {}
    served = {"endpoint": "https://acme", "dataIdentity": "5f0c", "servedRevision": 9000}
    return ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "uid": "1", "annotations": annotations},
            "spec": {"mode": "Dedicated"},
            "status": {**served, **status},
        }
    )


class Etcd:
    """An etcd with a revision and a number of keys, and the API server that uses it."""

    endpoint = "https://etcd"

    def __init__(self, revision: int, *, keys: int = 0) -> None:
        self._revision = revision
        self._keys = keys
        self.compacted = 0
        self.deleted: list[str] = []
        self.confirmed: list[str] = []
        self.phase = Phase.READY

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def revision(self) -> int:
        return self._revision

    async def count(self, _prefix: str) -> int:
        return self._keys

    async def compact(self, revision: int) -> None:
        assert revision <= self._revision
        self.compacted = revision

    async def raised(self, above: int) -> int:
        if above + 1 - self._revision > MOST_RAISED:
            raise RevisionTooFar(self.endpoint, revision=self._revision, above=above, most=MOST_RAISED)
        self._revision = max(self._revision, above + 1)
        return self._revision

    def names(self) -> list[str]:
        return ["etcd-acme", "kube-apiserver-acme"]

    async def delete(self, name: str) -> None:
        self.deleted.append(name)

    async def confirm(self, _control_plane: ControlPlane, *, founding: Founding) -> bool:
        self.confirmed.append(founding.mark)
        return False

    async def stop(self, _control_plane: ControlPlane) -> None:
        self.phase = Phase.ABSENT


@pytest.fixture(autouse=True)
def writes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def raise_revision(client: Etcd, *, above: int) -> int:
        return await client.raised(above)

    monkeypatch.setattr(dedicated, "raise_revision", raise_revision)
    monkeypatch.setattr(virtual, "raise_revision", raise_revision)


def provisioner(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> DedicatedProvisioner:
    made = object.__new__(DedicatedProvisioner)
    parts: dict[str, Any] = {
        "_api_servers": SimpleNamespace(phase=lambda _: etcd.phase, stop=etcd.stop),
        "_runtime": etcd,
        "_etcd": etcd,
    }
    for name, part in parts.items():
        setattr(made, name, part)
    monkeypatch.setattr(dedicated, "_look_into", lambda *_: etcd)
    return made


async def complete(etcd: Etcd, founding: Founding, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return the message that tells what is pending; None if the etcd can be used."""
    address = SimpleNamespace(host="etcd", ports={"client": 1})
    running: Any = SimpleNamespace(members=SimpleNamespace(voters=(address,)))
    try:
        await provisioner(etcd, monkeypatch)._complete_founding(control_plane(), etcd=running, founding=founding)
    except ConditionError as error:
        return error.message
    return None


LOST = Founding(begins_at=SEEN + 1, after="5f0c")


async def test_empty_etcd_is_made_again_after_an_accepted_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(3)
    message = await complete(etcd, LOST, monkeypatch)
    assert message == f"after the loss, etcd at revision 3 is raised to {SEEN + 1}"
    assert (etcd.deleted, etcd.phase, etcd.confirmed) == (["etcd-acme"], Phase.ABSENT, [])


async def test_etcd_with_data_is_raised_after_an_accepted_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(8000, keys=5)
    assert await complete(etcd, LOST, monkeypatch) is None
    assert (etcd._revision, etcd.compacted) == (SEEN + 1, SEEN + 1)
    assert (etcd.deleted, etcd.phase, etcd.confirmed) == ([], Phase.ABSENT, ["alone-5f0c"])


async def test_etcd_far_behind_is_raised_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(10, keys=5)
    founding = Founding(begins_at=2 * MOST_RAISED, after="5f0c")
    assert await complete(etcd, founding, monkeypatch) is not None
    assert (etcd._revision, etcd.confirmed) == (10 + MOST_RAISED, [])
    assert await complete(etcd, founding, monkeypatch) is None
    assert etcd.compacted == 2 * MOST_RAISED


async def test_etcd_above_all_seen_revisions_is_kept_after_an_accepted_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restore with a higher revision, which clients notice."""
    etcd = Etcd(1_000_009_000, keys=5)
    assert await complete(etcd, LOST, monkeypatch) is None
    assert (etcd._revision, etcd.deleted, etcd.phase) == (1_000_009_000, [], Phase.READY)
    # Exact reads and continued lists from before the loss fail too.
    assert etcd.compacted == SEEN + 1


@pytest.mark.parametrize(
    ("accepted", "status", "expected"),
    [
        (False, {}, None),
        (True, {}, LOST),
        # An earlier version recorded no revision.
        (True, {"servedRevision": None}, Founding(after="5f0c")),
        (False, {"endpoint": None, "dataIdentity": None, "servedRevision": None}, Founding()),
        # Data that an earlier control plane left.
        (False, {"endpoint": None}, None),
    ],
)
def test_etcd_begins_without_data_only_if_new_or_accepted(
    accepted: bool, status: dict[str, Any], expected: Founding | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert provisioner(Etcd(1), monkeypatch)._founding(control_plane(accepted=accepted, **status)) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, SEEN + 1),
        ({"servedRevision": None}, None),
        ({"restore": {"controlPlaneUID": "0", "beginsAt": 50_000}}, 50_000 + UNSEEN_REVISIONS + 1),
    ],
)
def test_revision_after_loss_is_above_all_records(status: dict[str, Any], expected: int | None) -> None:
    assert revision_after_loss(control_plane(**status)) == expected


def test_raise_of_etcd_at_the_record_is_possible() -> None:
    """A restore into a shared etcd that is a little behind the record must not fail for ever."""
    assert UNSEEN_REVISIONS + 100_000 <= MOST_RAISED


READY_LOST = [
    {
        "type": "Ready",
        "status": "False",
        "reason": "DataLost",
        "message": "the data are lost",
        "lastTransitionTime": "2026-11-26T01:00:00Z",
    }
]


async def test_etcd_without_data_is_data_lost_and_ends_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(1)
    error = EtcdWithoutData(Reason.API_SERVER_NOT_READY, "etcd-acme has no data")
    with pytest.raises(ConditionError) as caught:
        await provisioner(etcd, monkeypatch)._check_lost(control_plane(accepted=False), error)
    assert caught.value.reason is Reason.DATA_LOST
    assert "etcd-acme has no data" in caught.value.message
    assert f"set annotation {ACCEPT_DATA_LOSS_ANNOTATION} to 5f0c" in caught.value.message
    assert etcd.phase is Phase.ABSENT


async def test_lost_etcd_keeps_its_condition_while_its_program_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = provisioner(Etcd(1), monkeypatch)
    error = ConditionError(Reason.API_SERVER_NOT_READY, "waiting for etcd, which is Starting")
    with pytest.raises(ConditionError, match=r"^the data are lost$") as caught:
        await made._check_lost(control_plane(accepted=False, conditions=READY_LOST), error)
    assert caught.value.reason is Reason.DATA_LOST
    # Any other etcd that does not run has its data.
    await made._check_lost(control_plane(accepted=False), error)


@pytest.mark.parametrize(
    ("accepted", "revision", "expected"),
    [
        (False, 3, 3),
        # The shared etcd only lost the keys of this control plane.
        (True, 9000, 9000),
        # The shared etcd was restored from an older snapshot.
        (True, 8000, SEEN + 1),
    ],
)
async def test_shared_etcd_is_raised_only_if_it_is_behind_the_record(
    accepted: bool, revision: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd = Etcd(revision, keys=5)
    await accept_virtual(etcd, control_plane(accepted=accepted), monkeypatch)
    assert (etcd._revision, etcd.compacted) == (expected, expected if expected != revision else 0)


async def test_shared_etcd_too_far_behind_keeps_data_lost_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Etcd(3, keys=5)
    with pytest.raises(ConditionError, match=r"with a larger etcd\.restore\.bumpRevision$") as caught:
        await accept_virtual(etcd, control_plane(servedRevision=5_000_000), monkeypatch)
    assert (caught.value.reason, etcd._revision) == (Reason.DATA_LOST, 3)


async def accept_virtual(etcd: Etcd, accepted: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def connect(_self: VirtualProvisioner, _control_plane: ControlPlane) -> AsyncIterator[Any]:
        yield SimpleNamespace(client=etcd)

    monkeypatch.setattr(VirtualProvisioner, "connect", connect)
    await object.__new__(VirtualProvisioner)._raise_after_loss(accepted)
