"""Adoption of data that an earlier control plane of the same name left."""

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


def test_check_adoption_refuses_other_data_store() -> None:
    record = replace(RECORD, mode="Virtual", cluster_path="acme", data_store="pool-b")
    check_adoption(acme(mode="Virtual", virtual={"dataStoreRef": {"name": "pool-b"}}), record=record)
    with pytest.raises(ConditionError, match=r"in data store pool-b; set spec\.virtual\.dataStoreRef to that"):
        check_adoption(acme(mode="Virtual"), record=record)


def test_owned_metadata_records_data_store() -> None:
    control_plane = acme(mode="Virtual", virtual={"dataStoreRef": {"name": "pool-b"}})
    metadata = owned_metadata(control_plane)
    record = RetainedDataRecord.of({"metadata": {"name": "n", **metadata, "labels": {CONTROL_PLANE_LABEL: "acme"}}})
    assert record is not None
    assert record.home == control_plane.home == Home(mode=ControlPlaneMode.VIRTUAL, data_store="pool-b")


def test_retained_metadata_records_last_home() -> None:
    """A pass that changed the home may end before it records the home."""
    control_plane = acme(mode="Virtual", virtual={"dataStoreRef": {"name": "pool-b"}})
    metadata = retained_metadata(RECORD, home=control_plane.at(control_plane.home.model_copy(update={"slot": 1})))
    record = RetainedDataRecord.of({"metadata": {"name": "n", **metadata, "labels": {CONTROL_PLANE_LABEL: "acme"}}})
    assert record is not None
    assert record.home == Home(mode=ControlPlaneMode.VIRTUAL, slot=1, data_store="pool-b")
    assert (record.cluster_path, record.adoption_token) == ("acme", "secret")


def test_check_adoption_refuses_restore_over_retained_data() -> None:
    check_adoption(acme(), record=RECORD)
    with pytest.raises(ConditionError, match=r"spec\.source would write over them"):
        check_adoption(acme(source=SOURCE), record=RECORD)
