"""Who may take over the data that an earlier control plane of the name left."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kplane.api import ControlPlane
from kplane.api.names import ADOPT_ANNOTATION
from kplane.controlplane_operator.controlplanes.retained_data import RetainedDataRecord, check_adoption
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


def test_a_restore_is_never_written_over_retained_data() -> None:
    check_adoption(acme(), record=RECORD)
    with pytest.raises(ConditionError, match=r"spec\.source would write over them"):
        check_adoption(acme(source=SOURCE), record=RECORD)
