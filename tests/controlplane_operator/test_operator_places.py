"""Who has which API server that kplane does not run, or which path of one, also while endpoints are edited."""

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
from kplane.controlplane_operator.watch.event_routing import connect
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import ClusterConfig

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
def test_one_place_has_one_spelling(url: str, other: str) -> None:
    assert normalized_address(url) == normalized_address(other) == normalized_address(normalized_address(url))


@pytest.mark.parametrize("other", ["https://api.example:444", "https://api.example/base", "https://b.example"])
def test_other_addresses_are_other_places(other: str) -> None:
    assert normalized_address("https://api.example") != normalized_address(other)


def test_what_is_no_url_is_nobodys_place() -> None:
    assert held_addresses({"status": {"conditions": [_ADOPTED], "endpoint": "https://[1::2::3]"}}) == []
    assert written_addresses({"spec": {"endpoint": "https://[1::2::3]"}, "status": {"endpoint": "https://x"}}) == [
        "https://x:443"
    ]


class Field:
    """Control planes that are led to places, and an operator that may begin again."""

    def __init__(self) -> None:
        self.stores = Stores()
        self._wanted: dict[str, str] = {}
        self._version = 0
        self.restart()

    def restart(self) -> None:
        self.claims = AddressClaims(self.stores, address=lambda one: self._wanted.get(one.name))

    def led(self, name: str, to: str, *, age: int = 0, deleting: bool = False, **status: Any) -> ControlPlane:
        """Have a control plane of mode Dedicated whose endpoint leads to a place."""
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
        with pytest.raises(ConditionError, match=f"is that of control plane {because_of},") as told:
            self.claims.take(control_plane)
        assert told.value.reason == "EndpointInUse"


@pytest.fixture
def field() -> Field:
    return Field()


def test_a_place_is_its_holders_though_an_older_ones_endpoint_is_led_to_it(field: Field) -> None:
    younger = field.led("younger", _RIGHT, endpoint=_RIGHT)
    older = field.led("older", _RIGHT, age=9, endpoint=_LEFT)
    field.refused(older, because_of="younger")
    assert field.claims.take(younger) == _RIGHT
    # What each of them left behind is its own, and the younger one's end gives the place away.
    assert field.claims.holds(younger)
    assert field.claims.holds(older)
    field.stores.control_planes.remove({"metadata": {"name": "younger", "resourceVersion": "99"}})
    assert field.claims.take(older) == _RIGHT


@pytest.mark.parametrize("written", ["claimedAddress", "endpoint"])
def test_an_operator_that_begins_again_finds_written_down_who_has_what(field: Field, written: str) -> None:
    status: dict[str, Any] = {written: _RIGHT}
    holder = field.led("holder", _RIGHT, **status)
    older = field.led("older", _RIGHT, age=9)
    field.refused(older, because_of="holder")
    assert field.claims.take(holder) == _RIGHT
    assert not field.claims.holds(older)


def test_a_namespace_says_who_has_what_until_the_status_does(field: Field) -> None:
    """The namespace is made first, so it is what a pass leaves that is cut off before its status."""
    begun = field.led("begun", _RIGHT)
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
    # ... also if its endpoint was edited meanwhile.
    begun = field.led("begun", _LEFT)
    field.refused(older, because_of="begun")
    assert with_beginning(begun, namespace={"metadata": metadata}).status.claimed_address == _RIGHT
    field.led("begun", _LEFT, claimedAddress=_LEFT, deletionPolicy="Retain")
    assert field.claims.take(older) == _RIGHT


def test_what_was_granted_a_moment_ago_is_known_before_it_is_written_down(field: Field) -> None:
    field.claims.take(field.led("first", _LEFT))
    field.refused(field.led("older", _LEFT, age=9), because_of="first")


def test_of_those_who_want_a_free_place_the_oldest_gets_it(field: Field) -> None:
    younger, older = field.led("younger", _LEFT), field.led("older", "https://LEFT/", age=9)
    field.led("older", _LEFT, age=9)
    field.refused(younger, because_of="older")
    assert field.claims.take(older) == _LEFT


def test_one_that_moves_keeps_its_former_place_until_it_is_published_at_the_next(field: Field) -> None:
    moving = field.led("moving", _RIGHT, endpoint=_LEFT, claimedAddress=_LEFT)
    assert field.claims.take(moving) == _RIGHT
    other = field.led("other", _LEFT, age=9)
    field.refused(other, because_of="moving")
    moving = field.led("moving", _RIGHT, endpoint=_LEFT, claimedAddress=_RIGHT)
    field.restart()
    field.refused(other, because_of="moving")
    field.refused(field.led("another", _RIGHT, age=8), because_of="moving")
    field.led("moving", _RIGHT, endpoint=_RIGHT, claimedAddress=_RIGHT)
    assert field.claims.take(other) == _LEFT


def test_two_that_an_earlier_version_let_in_are_not_each_others_end(field: Field) -> None:
    older = field.led("older", _LEFT, age=9, endpoint=_LEFT)
    younger = field.led("younger", _LEFT, endpoint=_LEFT, deleting=True)
    assert field.claims.holds(older)
    assert not field.claims.holds(younger)


def test_a_place_is_not_free_while_its_holder_is_being_deleted(field: Field) -> None:
    field.led("leaving", _RIGHT, endpoint=_LEFT, deleting=True)
    field.refused(field.led("next", _LEFT, age=9), because_of="leaving")
    # But whoever is only asked to go claims nothing any more.
    field.led("going", "https://third", age=9, deleting=True)
    assert field.claims.take(field.led("staying", "https://third")) == "https://third"


def test_an_endpoint_that_is_edited_after_the_grant_gets_nobody_in(field: Field) -> None:
    one = field.led("one", _LEFT)
    field.claims.take(one)

    def provision(url: str) -> Provision:
        return Provision(Addresses(url, url, url), administrator=ClusterConfig(server=url), authorities=None)

    field.claims.confirm(one, provision=provision("https://LEFT/"))
    with pytest.raises(ConditionError, match="edited a moment ago") as told:
        field.claims.confirm(one, provision=provision(_RIGHT))
    assert told.value.reason == "Provisioning"
    assert not told.value.waits_for_event


def test_who_waits_for_a_place_is_looked_at_when_its_holder_moves_away(field: Field) -> None:
    field.led("holder", _RIGHT, endpoint=_LEFT)
    field.led("waiting", _LEFT)
    field.led("elsewhere", "https://third")
    queues = Queues()
    connect(field.stores, queues=queues)
    obj = field.stores.control_planes.get(("", "holder"))
    assert obj is not None
    moved = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "99"}}
    field.stores.control_planes.apply({**moved, "status": {**obj["status"], "endpoint": _RIGHT}})
    assert len(queues.control_planes) == 2
