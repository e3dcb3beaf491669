"""Who may take over the data that an earlier control plane of the name left."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kplane.api import ControlPlane, ControlPlaneMode, Home
from kplane.api.names import ADOPT_ANNOTATION, CONTROL_PLANE_LABEL
from kplane.controlplane_operator.controlplanes.retained_data import (
    RetainedDataRecord,
    check_adoption,
    owned_metadata,
    retained_metadata,
)
from kplane.controlplane_operator.status.errors import ConditionError

RECORD = RetainedDataRecord(
    namespace="kplane-cp-acme",
    name="acme",
    uid="former",
    mode="Dedicated",
    cluster_path=None,
    created=datetime(2026, 11, 22, tzinfo=UTC),
    adoption_token="secret",
)
SOURCE = {"snapshotRef": {"name": "acme-1"}, "identitySecretRef": {"name": "age"}}


def acme(**spec: object) -> ControlPlane:
    metadata = {"name": "acme", "uid": "present", "annotations": {ADOPT_ANNOTATION: "secret"}}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {"mode": "Dedicated", **spec}})


def test_data_are_taken_over_only_where_they_are() -> None:
    kept = replace(RECORD, mode="Virtual", cluster_path="acme", data_store="pool-b")
    check_adoption(acme(mode="Virtual", virtual={"dataStoreRef": {"name": "pool-b"}}), record=kept)
    with pytest.raises(ConditionError, match=r"in data store pool-b; set spec\.virtual\.dataStoreRef to that"):
        check_adoption(acme(mode="Virtual"), record=kept)


def test_a_namespace_records_the_data_store() -> None:
    control_plane = acme(mode="Virtual", virtual={"dataStoreRef": {"name": "pool-b"}})
    metadata = owned_metadata(control_plane)
    found = RetainedDataRecord.of({"metadata": {"name": "n", **metadata, "labels": {CONTROL_PLANE_LABEL: "acme"}}})
    assert found is not None
    assert found.home == control_plane.home == Home(mode=ControlPlaneMode.VIRTUAL, data_store="pool-b")


def test_the_record_of_data_says_where_they_moved_last() -> None:
    """A pass that changed the home may not have come to write it down."""
    control_plane = acme(mode="Virtual", virtual={"dataStoreRef": {"name": "pool-b"}})
    metadata = retained_metadata(RECORD, home=control_plane.at(control_plane.home.model_copy(update={"slot": 1})))
    found = RetainedDataRecord.of({"metadata": {"name": "n", **metadata, "labels": {CONTROL_PLANE_LABEL: "acme"}}})
    assert found is not None
    assert found.home == Home(mode=ControlPlaneMode.VIRTUAL, slot=1, data_store="pool-b")
    assert (found.cluster_path, found.adoption_token) == ("acme", "secret")


def test_a_restore_is_never_written_over_retained_data() -> None:
    check_adoption(acme(), record=RECORD)
    with pytest.raises(ConditionError, match=r"spec\.source would write over them"):
        check_adoption(acme(source=SOURCE), record=RECORD)
