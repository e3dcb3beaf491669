"""The models accept and refuse the same objects as the API server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from kplane.api import AuthModel, ControlPlane, ControlPlaneClass, ControlPlaneMode, ControlPlaneRegistration, Service
from kplane.api.generate import KINDS

MODELS = {kind.resource.kind: kind for kind in KINDS}


def control_plane(name: str, **spec: Any) -> ControlPlane:
    return ControlPlane.model_validate({"metadata": {"name": name}, "spec": spec})


def test_models_accept_manifest(accepted: dict[str, Any]) -> None:
    model = MODELS[accepted["kind"]].model_validate(accepted)
    assert model.metadata.name == accepted["metadata"]["name"]


def test_models_refuse_manifest_and_name_field(refusal: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        MODELS[refusal.manifest["kind"]].model_validate(refusal.manifest)
    field = re.sub(r"\[(\d+)\]", r".\1", refusal.field)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "path"),
    [({}, "tenant"), ({"virtual": {}}, "tenant"), ({"virtual": {"clusterPath": "seven"}}, "seven")],
)
def test_cluster_path_defaults_to_name(spec: dict[str, Any], path: str) -> None:
    assert control_plane("tenant", **spec).cluster_path == path


def test_cluster_path_of_dedicated_control_plane_is_its_name() -> None:
    assert control_plane("tenant", mode="Dedicated").cluster_path == "tenant"


def test_models_fill_defaults_without_api_server() -> None:
    assert control_plane("tenant").spec.mode is ControlPlaneMode.VIRTUAL
    spec = ControlPlaneClass.model_validate({"metadata": {"name": "plain"}, "spec": {}}).spec
    assert (spec.auth.model, spec.auth.default_role) == (AuthModel.TOKEN, "cluster-admin")
    assert spec.controllers is None
    assert spec.deletion_policy is None


def test_services_are_normalized_to_title_case_and_unique() -> None:
    registration = ControlPlaneRegistration.model_validate(
        {
            "metadata": {"name": "r"},
            "spec": {"controlPlaneRef": {"name": "x"}, "services": ["scheduler", "Controllers", "controllers"]},
        }
    )
    assert registration.spec.services == [Service.SCHEDULER, Service.CONTROLLERS]


def test_server_metadata_is_read_and_unknown_fields_are_dropped() -> None:
    model = ControlPlaneRegistration.model_validate(
        {
            "apiVersion": "controlplane.kplane.dev/v1alpha1",
            "kind": "ControlPlaneRegistration",
            "metadata": {
                "name": "r",
                "uid": "7",
                "generation": 2,
                "deletionTimestamp": "2026-05-04T12:00:00Z",
                "managedFields": [{"manager": "somebody"}],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "8", "controller": True}],
            },
            "spec": {"controlPlaneRef": {"name": "x"}, "futureField": 1},
            "status": {"controlPlaneUID": "9", "futureField": 1},
        }
    )
    assert (model.metadata.uid, model.metadata.generation, model.deleting) == ("7", 2, True)
    assert [owner.controller for owner in model.metadata.owner_references] == [True]
    assert model.status.control_plane_uid == "9"
    assert "futureField" not in str(model.model_dump(by_alias=True))
