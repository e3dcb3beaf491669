"""Claims of addresses of API servers that kplane does not run, also while endpoints are edited."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.addresses import normalized_address
from kplane.api.names import CLAIMED_ADDRESS_ANNOTATION, CONTROL_PLANE_LABEL
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.controlplanes.beginning import with_beginning
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.addresses import (
    held_addresses,
    written_addresses,
)
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import ClusterConfig

from .watched import Watched

_LEFT, _RIGHT = "https://left:443", "https://right:443"
_ADOPTED = {
    "type": "Managed",
    "status": "False",
    "reason": "x",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("https://api.example", "https://API.Example:443/"),
        ("https://api.example./base", "https://api.example//base/"),
        ("https://[::1]:6443", "https://[0:0:0:0:0:0:0:1]:6443"),
        ("https://[::ABCD]/", "https://[0::abcd]"),
        ("https://127.0.0.1:6443", "https://[::ffff:7f00:1]:6443"),
        ("https://127.0.0.1", "https://127.1"),
        ("https://127.0.0.1", "https://0x7f.0.0.1"),
        ("https://127.0.0.1", "https://2130706433"),
    ],
)
def test_normalized_address_is_equal_for_all_spellings(url: str, other: str) -> None:
    assert normalized_address(url) == normalized_address(other) == normalized_address(normalized_address(url))


@pytest.mark.parametrize("other", ["https://api.example:444", "https://api.example/base", "https://b.example"])
def test_normalized_address_differs_for_other_addresses(other: str) -> None:
    assert normalized_address("https://api.example") != normalized_address(other)


def test_invalid_url_is_no_held_or_written_address() -> None:
    assert held_addresses({"status": {"conditions": [_ADOPTED], "endpoint": "https://[1::2::3]"}}) == []
    assert written_addresses({"spec": {"endpoint": "https://[1::2::3]"}, "status": {"endpoint": "https://x"}}) == [
        "https://x:443"
    ]


class Field:
    """Control planes with endpoints at addresses, and an operator that can restart."""

    def __init__(self) -> None:
        self.stores = Stores()
        self._wanted: dict[str, str] = {}
        self._version = 0
        self.restart()

    def restart(self) -> None:
        self.claims = AddressClaims(self.stores, address=lambda one: self._wanted.get(one.name))

    def led(self, name: str, to: str, *, age: int = 0, deleting: bool = False, **status: Any) -> ControlPlane:
        """Store a control plane of mode Dedicated whose endpoint has address `to`."""
        self._version += 1
        version = str(self._version)
        self._wanted[name] = to
        self.stores.endpoints.apply(
            {"metadata": {"name": name, "uid": f"e-{name}", "resourceVersion": version}, "spec": {"endpoint": to}}
        )
        metadata = {
            "name": name,
            "uid": name,
            "resourceVersion": version,
            "creationTimestamp": f"2026-01-{20 - age:02}T00:00:00Z",
            **({"deletionTimestamp": "2026-02-01T00:00:00Z", "finalizers": ["f"]} if deleting else {}),
        }
        spec = {"mode": "Dedicated", "endpointRef": {"name": name}}
        obj = {"metadata": metadata, "spec": spec, "status": {"conditions": [_ADOPTED], **status}}
        self.stores.control_planes.apply(obj)
        return ControlPlane.model_validate(obj)

    def refused(self, control_plane: ControlPlane, *, because_of: str) -> None:
        with pytest.raises(ConditionError, match=f"is that of control plane {because_of},") as refusal:
            self.claims.take(control_plane)
        assert refusal.value.reason == "EndpointInUse"


@pytest.fixture
def field() -> Field:
    return Field()


def test_address_stays_with_holder_against_older_control_plane(field: Field) -> None:
    younger = field.led("younger", _RIGHT, endpoint=_RIGHT)
    older = field.led("older", _RIGHT, age=9, endpoint=_LEFT)
    field.refused(older, because_of="younger")
    assert field.claims.take(younger) == _RIGHT
    # Each control plane holds its own data. The deletion of the younger frees the address.
    assert field.claims.holds(younger)
    assert field.claims.holds(older)
    field.stores.control_planes.remove({"metadata": {"name": "younger", "resourceVersion": "99"}})
    assert field.claims.take(older) == _RIGHT


@pytest.mark.parametrize("written", ["claimedAddress", "endpoint"])
def test_status_names_holder_after_restart_of_operator(field: Field, written: str) -> None:
    status: dict[str, Any] = {written: _RIGHT}
    holder = field.led("holder", _RIGHT, **status)
    older = field.led("older", _RIGHT, age=9)
    field.refused(older, because_of="holder")
    assert field.claims.take(holder) == _RIGHT
    assert not field.claims.holds(older)


def test_namespace_names_holder_until_status_does(field: Field) -> None:
    """A pass creates the namespace before it writes the status, so an interrupted pass leaves only the namespace."""
    interrupted = field.led("begun", _RIGHT)
    metadata = {
        "name": "kplane-cp-begun",
        "resourceVersion": "1",
        "labels": {CONTROL_PLANE_LABEL: "begun"},
        "annotations": {CLAIMED_ADDRESS_ANNOTATION: _RIGHT},
        "ownerReferences": [{"kind": "ControlPlane", "name": "begun", "uid": "begun"}],
    }
    field.stores.namespaces.apply({"metadata": metadata})
    older = field.led("older", _RIGHT, age=9)
    field.refused(older, because_of="begun")
    # The record also counts after an edit of the endpoint.
    interrupted = field.led("begun", _LEFT)
    field.refused(older, because_of="begun")
    assert with_beginning(interrupted, namespace={"metadata": metadata}).status.claimed_address == _RIGHT
    field.led("begun", _LEFT, claimedAddress=_LEFT, deletionPolicy="Retain")
    assert field.claims.take(older) == _RIGHT


def test_granted_address_is_held_before_status_is_written(field: Field) -> None:
    field.claims.take(field.led("first", _LEFT))
    field.refused(field.led("older", _LEFT, age=9), because_of="first")


def test_oldest_control_plane_gets_free_address(field: Field) -> None:
    younger, older = field.led("younger", _LEFT), field.led("older", "https://LEFT/", age=9)
    field.led("older", _LEFT, age=9)
    field.refused(younger, because_of="older")
    assert field.claims.take(older) == _LEFT


def test_moving_control_plane_holds_both_addresses_until_published(field: Field) -> None:
    moving = field.led("moving", _RIGHT, endpoint=_LEFT, claimedAddress=_LEFT)
    assert field.claims.take(moving) == _RIGHT
    waiting = field.led("other", _LEFT, age=9)
    field.refused(waiting, because_of="moving")
    moving = field.led("moving", _RIGHT, endpoint=_LEFT, claimedAddress=_RIGHT)
    field.restart()
    field.refused(waiting, because_of="moving")
    field.refused(field.led("another", _RIGHT, age=8), because_of="moving")
    field.led("moving", _RIGHT, endpoint=_RIGHT, claimedAddress=_RIGHT)
    assert field.claims.take(waiting) == _LEFT


def test_only_older_of_two_recorded_holders_holds_the_address(field: Field) -> None:
    older = field.led("older", _LEFT, age=9, endpoint=_LEFT)
    younger = field.led("younger", _LEFT, endpoint=_LEFT, deleting=True)
    assert field.claims.holds(older)
    assert not field.claims.holds(younger)


def test_address_stays_taken_while_holder_is_being_deleted(field: Field) -> None:
    field.led("leaving", _RIGHT, endpoint=_LEFT, deleting=True)
    field.refused(field.led("next", _LEFT, age=9), because_of="leaving")
    # A control plane that is being deleted and holds no address claims none.
    field.led("going", "https://third", age=9, deleting=True)
    assert field.claims.take(field.led("staying", "https://third")) == "https://third"


def test_confirm_refuses_endpoint_edited_after_grant(field: Field) -> None:
    holder = field.led("one", _LEFT)
    field.claims.take(holder)

    def provision(url: str) -> Provision:
        return Provision(Addresses(url, url, url), administrator=ClusterConfig(server=url), authorities=None)

    field.claims.confirm(holder, provision=provision("https://LEFT/"))
    with pytest.raises(ConditionError, match="edited a moment ago") as refusal:
        field.claims.confirm(holder, provision=provision(_RIGHT))
    assert refusal.value.reason == "Provisioning"
    assert not refusal.value.waits_for_event


def test_moving_holder_enqueues_control_plane_that_waits(field: Field) -> None:
    field.led("holder", _RIGHT, endpoint=_LEFT)
    field.led("waiting", _LEFT)
    field.led("elsewhere", "https://third")
    watched = Watched(field.stores)
    obj = field.stores.control_planes.get(("", "holder"))
    assert obj is not None
    moved = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "99"}}
    field.stores.control_planes.apply({**moved, "status": {**obj["status"], "endpoint": _RIGHT}})
    assert len(watched.names("controlplane")) == 2
