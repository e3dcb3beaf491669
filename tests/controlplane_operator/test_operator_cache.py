"""The cache keeps the newest state, whether a watch, a list or an own write delivers that state first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.controlplane_operator.watch.cache import Change, MergedStore, Store
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider.client.resources import SECRETS

from .watched import Watched


def secret(name: str, version: int, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version)}, "data": data}


def recorded(store: Store) -> list[Change]:
    changes: list[Change] = []
    store.listen(changes.append)
    return changes


def test_store_keeps_newer_state_over_older() -> None:
    store = MergedStore(SECRETS)
    store.apply(secret("a", 5, value="new"))
    store.apply(secret("a", 4, value="old"))
    store.replace([secret("a", 3, value="older")], resource_version="3", namespace="ns")
    assert store.get(("ns", "a")) == secret("a", 5, value="new")


def test_replace_reports_missed_delete_and_keeps_later_object() -> None:
    store = MergedStore(SECRETS)
    store.apply(secret("gone", 4))
    store.apply(secret("later", 9))
    changes = recorded(store)
    store.replace([secret("kept", 5)], resource_version="8", namespace="ns")
    assert {obj["metadata"]["name"] for obj in store} == {"kept", "later"}
    assert [change.key[1] for change in changes if change.new is None] == ["gone"]


def test_replace_with_older_list_keeps_object_deleted() -> None:
    store = MergedStore(SECRETS)
    store.apply(secret("a", 4))
    store.remove(secret("a", 7))
    store.replace([secret("a", 4)], resource_version="6", namespace="ns")
    assert store.get(("ns", "a")) is None
    store.apply(secret("a", 9))
    assert store.get(("ns", "a")) is not None


def test_lacks_is_true_only_for_versions_after_the_known() -> None:
    store = MergedStore(SECRETS)
    store.apply(secret("known", 5))
    store.remove(secret("gone", 7))

    def lacks(name: str) -> list[int]:
        return [version for version in range(4, 9) if store.lacks(("ns", name), resource_version=str(version))]

    assert (lacks("known"), lacks("gone"), lacks("new")) == ([6, 7, 8], [8], [4, 5, 6, 7, 8])


def test_read_decodes_each_state_once() -> None:
    store, read = Store(SECRETS), list[str]()

    def value(obj: dict[str, Any]) -> str:
        read.append(obj["data"]["value"])
        return read[-1]

    values = [store.read(("ns", "a"), value)]
    for version in (1, 2):
        store.apply(secret("a", version, value=f"of {version}"))
        values += [store.read(("ns", "a"), value) for _ in range(2)]
    store.remove(secret("a", 3))
    assert [*values, store.read(("ns", "a"), value)] == [None, "of 1", "of 1", "of 2", "of 2", None]
    assert read == ["of 1", "of 2"]


def test_repeated_state_is_a_single_change() -> None:
    store = MergedStore(SECRETS)
    changes = recorded(store)
    store.apply(secret("a", 1))
    store.replace([secret("a", 1)], resource_version="3", namespace="ns")
    assert len(changes) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None])), max_size=30))
def test_index_agrees_with_stored_objects(steps: list[tuple[str, str | None]]) -> None:
    store = Store(SECRETS, indexers={"value": lambda obj: obj["data"].values()})
    for version, (name, value) in enumerate(steps, start=1):
        if value is None:
            store.remove(secret(name, version))
        else:
            store.apply(secret(name, version, value=value))
    for value in ("x", "y"):
        expected = sorted(obj["metadata"]["name"] for obj in store if obj["data"]["value"] == value)
        assert [obj["metadata"]["name"] for obj in store.by("value", value)] == expected


def test_failing_indexer_is_logged_and_other_objects_are_indexed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def of_value(found: dict[str, Any]) -> list[str]:
        # KeyError for an object of another shape, TypeError for an unhashable value.
        value = found["data"]["value"]
        return [value] if value != "list" else [["unhashable"]]  # type: ignore[list-item]

    store = Store(SECRETS, indexers={"value": of_value, "name": lambda found: [found["metadata"]["name"]]})
    changes = recorded(store)
    objects = [secret("bad", 1), secret("worse", 2, value="list"), secret("good", 3, value="x")]
    for item in objects:
        store.apply(item)
    assert {item["metadata"]["name"] for item in store} == {"bad", "worse", "good"}
    assert [item["metadata"]["name"] for item in store.by("value", "x")] == ["good"]
    assert [item["metadata"]["name"] for item in store.by("name", "bad")] == ["bad"]
    assert [change.key[1] for change in changes] == ["bad", "worse", "good"]
    assert [record.getMessage() for record in caplog.records] == [
        "failed to index Secret ns/bad by 'value'",
        "failed to index Secret ns/worse by 'value'",
    ]
    # An object is indexed once it is valid. An object of another shape can be removed.
    store.apply(secret("bad", 5, value="y"))
    store.remove(secret("worse", 6, value="list"))
    assert [item["metadata"]["name"] for item in store.by("value", "y")] == ["bad"]
    assert len(store) == 2


def test_failing_listener_is_logged_and_others_get_the_change(caplog: pytest.LogCaptureFixture) -> None:
    def fail(change: Change) -> None:
        if change.key[1] == "bad":
            raise KeyError("spec")

    store = Store(SECRETS)
    store.listen(fail)
    changes = recorded(store)
    for item in (secret("bad", 1), secret("good", 2)):
        store.apply(item)
    store.apply(secret("bad", 4))
    store.remove(secret("bad", 5))
    assert [change.key[1] for change in changes] == ["bad", "good", "bad", "bad"]
    assert [record.getMessage() for record in caplog.records] == ["failed to handle a change of Secret ns/bad"] * 3


def obj(name: str, version: int, *, namespace: str | None = None, **body: Any) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(version)} | ({"namespace": namespace} if namespace else {})
    return {"metadata": metadata, "spec": {}, **body}


def test_changed_object_enqueues_its_dependents() -> None:
    stores = Stores()
    stores.control_planes.apply(obj("cp", 1, spec={"classRef": {"name": "gold"}, "endpointRef": {"name": "door"}}))
    stores.registrations.apply(
        obj(
            "reg",
            2,
            spec={
                "controlPlaneRef": {"name": "cp"},
                "endpointRef": {"name": "side-door"},
                "kubeconfigSecretRef": {"namespace": "ns", "name": "own"},
            },
        )
    )
    watched = Watched(stores)
    expected: list[tuple[Store, dict[str, Any], dict[str, set[str]]]] = [
        (
            stores.classes,
            obj("gold", 3, spec={"addons": ["quota"]}),
            {
                "controlplaneclass": {"gold"},
                "controlplane": {"cp"},
                "controlplaneaddons": {"cp"},
                "snapshotschedule": {"cp"},
            },
        ),
        (stores.endpoints, obj("door", 4), {"controlplaneendpoint": {"door"}, "controlplane": {"cp"}}),
        (stores.endpoints, obj("side-door", 5), {"controlplaneendpoint": {"side-door"}}),
        (stores.allowed_secrets, obj("own", 6, namespace="ns"), {}),
        (
            stores.secrets,
            obj("any", 7, namespace="kplane-cp-cp"),
            {"controlplane": {"cp"}, "controlplaneaddons": {"cp"}},
        ),
        (
            stores.bundles,
            obj("quota", 7, namespace="kplane-system"),
            {"controlplaneclass": {"gold"}, "controlplaneaddons": {"cp"}},
        ),
        (stores.bundles, obj("others", 7, namespace="kplane-system"), {}),
        (stores.namespaces, obj("kplane-cp-cp", 8), {"controlplane": {"cp"}}),
    ]
    registered = {"gold", "side-door", "own"}
    for store, changed_object, wakes in expected:
        if changed_object["metadata"]["name"] in registered:
            wakes = wakes | {"controlplaneregistration": {"reg"}}
        store.apply(changed_object)
        assert watched.woken() == wakes, changed_object["metadata"]["name"]


def test_deletion_enqueues_control_planes_that_want_the_path() -> None:
    stores = Stores()
    stores.control_planes.apply(obj("first", 1, spec={"virtual": {"clusterPath": "shared"}}))
    stores.control_planes.apply(obj("second", 2, spec={"virtual": {"clusterPath": "shared"}}))
    watched = Watched(stores)
    stores.control_planes.remove(obj("first", 9))
    assert watched.woken()["controlplane"] == {"first", "second"}


def test_own_status_fields_do_not_enqueue_the_object() -> None:
    stores = Stores()
    own_status = {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "message": "request 1 failed"}],
        "keyFingerprints": {"sa.key": "0" * 64},
    }
    for store in (stores.control_planes, stores.endpoints):
        store.apply(obj("told", 1, spec={}))
    watched = Watched(stores)
    for store in (stores.control_planes, stores.endpoints):
        store.apply(obj("told", 2, spec={}, status=own_status))
    assert watched.woken() == {}
    stores.control_planes.apply(obj("told", 3, spec={}, status={**own_status, "endpoint": "https://edited.example"}))
    assert watched.woken() == {"controlplane": {"told"}, "controlplaneendpoint": {"told"}}


def test_ready_control_plane_enqueues_its_addons() -> None:
    stores = Stores()
    stores.classes.apply(obj("gold", 1, spec={"addons": ["quota"]}))
    stores.control_planes.apply(obj("cp", 2, spec={"classRef": {"name": "gold"}}))
    watched = Watched(stores)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    stores.control_planes.apply(obj("cp", 3, spec={"classRef": {"name": "gold"}}, status=ready))
    assert watched.woken() == {"controlplaneaddons": {"cp"}}


def test_status_changes_enqueue_registrations_after_a_quiet_period() -> None:
    stores = Stores()
    stores.control_planes.apply(obj("cp", 1, spec={}))
    stores.registrations.apply(obj("reg", 2, spec={"controlPlaneRef": {"name": "cp"}}))
    watched = Watched(stores)
    for version, phase in enumerate(("Pending", "Provisioning"), start=3):
        stores.control_planes.apply(obj("cp", version, spec={}, status={"phase": phase}))
    assert watched.delayed["controlplaneregistration"] == {"reg"}
    assert watched.woken() == {}
    # A change of the published endpoint enqueues registrations at once.
    published = {"phase": "Ready", "endpoint": "https://tenant.example"}
    stores.control_planes.apply(obj("cp", 5, spec={}, status=published))
    assert watched.woken()["controlplaneregistration"] == {"reg"}


def test_endpoint_is_enqueued_when_control_plane_takes_or_leaves_it() -> None:
    stores = Stores()
    watched = Watched(stores)
    stores.control_planes.apply(obj("cp", 1, spec={"endpointRef": {"name": "door"}}))
    assert watched.woken()["controlplaneendpoint"] == {"door"}
    stores.control_planes.apply(obj("cp", 2, spec={"endpointRef": {"name": "other-door"}}))
    assert watched.woken()["controlplaneendpoint"] == {"door", "other-door"}
    stores.control_planes.apply(obj("cp", 3, spec={"endpointRef": {"name": "other-door"}, "deletionPolicy": "Destroy"}))
    assert "controlplaneendpoint" not in watched.woken()
    stores.control_planes.remove(obj("cp", 4, spec={}))
    assert watched.woken()["controlplaneendpoint"] == {"other-door"}


def test_failing_object_is_logged_and_the_others_are_enqueued(caplog: pytest.LogCaptureFixture) -> None:
    stores = Stores()
    watched = Watched(stores)
    for version, (name, spec) in enumerate((("bad", {"addons": 1}), ("good", {"addons": ["quota"]})), start=1):
        stores.classes.apply(obj(name, version, spec=spec))
    stores.control_planes.apply({"metadata": {"name": "bad", "resourceVersion": "3"}})
    stores.control_planes.apply(obj("cp", 4, spec={}))
    stores.registrations.apply(obj("reg", 5, spec={"controlPlaneRef": {"name": "cp"}}))
    names_by_controller = watched.woken()
    assert names_by_controller["controlplane"] == {"bad", "cp"}
    assert names_by_controller["controlplaneregistration"] == {"reg"}
    assert names_by_controller["controlplaneclass"] == {"bad", "good"}
    assert "failed to handle a change of ControlPlane bad" in caplog.messages
    assert [item["metadata"]["name"] for item in stores.classes.by("addon", "quota")] == ["good"]
