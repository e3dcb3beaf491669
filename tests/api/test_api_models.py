"""The models: they take what the API server takes, and understand it."""

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


def test_accepted_by_the_models(accepted: dict[str, Any]) -> None:
    read = MODELS[accepted["kind"]].model_validate(accepted)
    assert read.metadata.name == accepted["metadata"]["name"]


def test_refused_by_the_models(refusal: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        MODELS[refusal.manifest["kind"]].model_validate(refusal.manifest)
    field = re.sub(r"\[(\d+)\]", r".\1", refusal.field)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "path"),
    [({}, "tenant"), ({"virtual": {}}, "tenant"), ({"virtual": {"clusterPath": "seven"}}, "seven")],
)
def test_the_path_is_what_is_given_else_the_name(spec: dict[str, Any], path: str) -> None:
    assert control_plane("tenant", **spec).cluster_path == path


def test_a_dedicated_control_plane_has_the_path_of_its_name() -> None:
    assert control_plane("tenant", mode="Dedicated").cluster_path == "tenant"


def test_defaults_without_an_api_server() -> None:
    assert control_plane("tenant").spec.mode is ControlPlaneMode.VIRTUAL
    spec = ControlPlaneClass.model_validate({"metadata": {"name": "plain"}, "spec": {}}).spec
    assert (spec.auth.model, spec.auth.default_role) == (AuthModel.TOKEN, "cluster-admin")
    assert spec.controllers is None
    assert spec.deletion_policy is None


def test_services_are_read_in_title_case_and_once() -> None:
    registration = ControlPlaneRegistration.model_validate(
        {
            "metadata": {"name": "r"},
            "spec": {"controlPlaneRef": {"name": "x"}, "services": ["scheduler", "Controllers", "controllers"]},
        }
    )
    assert registration.spec.services == [Service.SCHEDULER, Service.CONTROLLERS]


def test_what_the_api_server_adds_is_read_and_the_rest_ignored() -> None:
    read = ControlPlaneRegistration.model_validate(
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
    assert (read.metadata.uid, read.metadata.generation, read.deleting) == ("7", 2, True)
    assert [owner.controller for owner in read.metadata.owner_references] == [True]
    assert read.status.control_plane_uid == "9"
    assert "futureField" not in str(read.model_dump(by_alias=True))
