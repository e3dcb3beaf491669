"""Registrations resolve by the objects that exist, independent of the order of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneEndpoint, ControlPlaneRegistration, ObjectReference, SecretReference
from kplane.api.reasons import Reason
from kplane.controlplane_operator.registrations.resolution import (
    Resolution,
    SecretStanding,
    is_published,
    resolve,
    secret_wanted,
    until_first_words,
)
from kplane.controlplane_operator.status.errors import ConditionError

_OWN = {"name": "controlplane-cp-kubeconfig", "namespace": "kplane-cp-cp"}
_CONTROLLERS = {"name": "controlplane-cp-controllers", "namespace": "kplane-cp-cp"}
_PUBLISHED = {
    "endpoint": "https://cp.example:1",
    "kubeconfigSecretRef": _OWN,
    "controllersSecretRef": _CONTROLLERS,
    "version": "v1.36.3",
}


def control_plane(status: dict[str, Any] | None = None, *, deleting: bool = False) -> ControlPlane:
    metadata = {"name": "cp", "uid": "uid-1"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status or {}})


def registration(**spec: Any) -> ControlPlaneRegistration:
    return ControlPlaneRegistration.model_validate(
        {"metadata": {"name": "reg", "uid": "uid-2"}, "spec": {"controlPlaneRef": {"name": "cp"}, **spec}}
    )


def resolved(
    one: ControlPlaneRegistration,
    of: ControlPlane | None,
    *,
    endpoint: ControlPlaneEndpoint | None = None,
    standing: SecretStanding | ConditionError = SecretStanding.USABLE,
) -> Resolution:
    return resolve(one, control_plane=of, endpoint=endpoint, standing=standing)


def reason(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConditionError) as refused:
        resolved(*args, **kwargs)
    return refused.value.reason


def test_resolve_defaults_to_values_of_control_plane() -> None:
    resolution = resolved(registration(), control_plane(_PUBLISHED))
    assert resolution.endpoint == "https://cp.example:1"
    assert resolution.kubeconfig_secret.model_dump() == _OWN
    assert resolution.controllers_secret is not None
    assert resolution.controllers_secret.model_dump() == _CONTROLLERS
    assert (resolution.control_plane_uid, resolution.version) == ("uid-1", "v1.36.3")


def test_resolve_keeps_values_while_control_plane_is_not_ready() -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "EndpointUnreachable",
        "message": "no answer",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    assert resolved(registration(), control_plane(_PUBLISHED | {"conditions": [condition]})).version == "v1.36.3"


def test_resolve_has_a_reason_for_each_missing_object() -> None:
    assert reason(registration(), None) == "ControlPlaneNotFound"
    assert reason(registration(), control_plane()) == "ControlPlaneNotReady"
    assert reason(registration(), control_plane({"endpoint": "https://x"})) == "KubeconfigPending"
    assert reason(registration(), control_plane(_PUBLISHED, deleting=True)) == "ControlPlaneNotReady"
    assert reason(registration(endpointRef={"name": "e"}), control_plane(_PUBLISHED)) == "EndpointPending"


def test_resolve_raises_hibernated_for_sleeping_control_plane() -> None:
    sleeping = _PUBLISHED | {"hibernation": {"since": "2026-01-01T00:00:00Z", "reason": "NotUsedYet"}}
    assert reason(registration(), control_plane(sleeping)) == "Hibernated"
    mine = {"name": "mine", "namespace": "elsewhere"}
    assert reason(registration(kubeconfigSecretRef=mine), control_plane(sleeping)) == "Hibernated"


def test_resolve_passes_on_message_of_never_ready_control_plane() -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "ClassNotFound",
        "message": "class gold does not exist",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    with pytest.raises(ConditionError, match="class gold does not exist") as refused:
        resolved(registration(), control_plane({"conditions": [condition]}))
    assert refused.value.reason == "ControlPlaneNotReady"


def test_resolve_uses_other_secret_only_if_present_and_allowed() -> None:
    foreign = {"name": "mine", "namespace": "elsewhere"}
    reg = registration(kubeconfigSecretRef=foreign)
    assert resolved(reg, control_plane(_PUBLISHED)).controllers_secret is None
    assert reason(reg, control_plane(_PUBLISHED), standing=SecretStanding.ABSENT) == "SecretNotFound"
    assert reason(reg, control_plane(_PUBLISHED), standing=SecretStanding.NOT_ALLOWED) == "SecretNotAllowed"
    secret_reference = secret_wanted(reg, control_plane=control_plane(_PUBLISHED))
    assert secret_reference is not None
    assert secret_reference.model_dump() == foreign


def test_resolve_keeps_secret_that_became_unreadable() -> None:
    secret = {"name": "private", "namespace": "acme"}
    forbidden = ConditionError(Reason.SECRETS_NOT_READABLE, "run: kubectl create rolebinding")
    reg = registration(kubeconfigSecretRef=secret)
    assert reason(reg, control_plane(_PUBLISHED), standing=forbidden) == "SecretsNotReadable"
    other_reg = with_status(reg, ready=True, resolvedKubeconfigSecretRef={**secret, "name": "another"})
    assert reason(other_reg, control_plane(_PUBLISHED), standing=forbidden) == "SecretsNotReadable"
    resolution = resolved(
        with_status(reg, ready=True, resolvedKubeconfigSecretRef=secret), control_plane(_PUBLISHED), standing=forbidden
    )
    assert resolution.kubeconfig_secret.model_dump() == secret
    assert resolution.unreadable is forbidden
    # Other failures keep their own reasons.
    assert reason(reg, None, standing=forbidden) == "ControlPlaneNotFound"


def with_status(one: ControlPlaneRegistration, **status: Any) -> ControlPlaneRegistration:
    return ControlPlaneRegistration.model_validate({**one.model_dump(mode="json", by_alias=True), "status": status})


def test_is_published_is_true_only_for_kubeconfig_and_controllers() -> None:
    def published(name: str, namespace: str = "kplane-cp-cp") -> bool:
        return is_published(SecretReference(name=name, namespace=namespace), control_plane=control_plane(_PUBLISHED))

    assert published("controlplane-cp-kubeconfig")
    assert published("controlplane-cp-controllers")
    assert not published("control-plane-authorities")
    assert not published("controlplane-cp-kubeconfig", "kplane-cp-other")
    keys = registration(kubeconfigSecretRef={"name": "control-plane-authorities", "namespace": "kplane-cp-cp"})
    with pytest.raises(ConditionError, match="name controlplane-cp-kubeconfig or controlplane-cp-controllers"):
        resolved(keys, control_plane(_PUBLISHED), standing=SecretStanding.NOT_ALLOWED)


def test_resolve_with_named_published_secret_equals_default() -> None:
    named = resolved(registration(kubeconfigSecretRef=_OWN), control_plane(_PUBLISHED))
    assert named == resolved(registration(), control_plane(_PUBLISHED))


def test_resolve_appends_path_to_chosen_endpoint() -> None:
    door = ControlPlaneEndpoint.model_validate({"metadata": {"name": "e"}, "spec": {"endpoint": "https://door"}})
    resolution = resolved(registration(endpointRef={"name": "e"}), control_plane(_PUBLISHED), endpoint=door)
    assert resolution.endpoint == "https://door/clusters/cp/control-plane"


def test_resolve_refuses_endpoint_of_another_tenant() -> None:
    door = ControlPlaneEndpoint.model_validate(
        {"metadata": {"name": "e"}, "spec": {"endpoint": "https://door/clusters/other/control-plane"}}
    )
    reg = registration(endpointRef={"name": "e"})
    assert reason(reg, control_plane(_PUBLISHED), endpoint=door) == "EndpointInvalid"


def test_resolve_uses_published_url_for_endpoint_of_control_plane() -> None:
    door = ControlPlaneEndpoint.model_validate({"metadata": {"name": "door"}, "spec": {"endpoint": "https://moved"}})
    reg = registration(endpointRef={"name": "door"})
    owner = control_plane(_PUBLISHED)
    owner = owner.model_copy(
        update={"spec": owner.spec.model_copy(update={"endpoint_ref": ObjectReference(name="door")})}
    )
    assert resolved(reg, owner, endpoint=door).endpoint == "https://cp.example:1"


_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def waiting(seconds: float, **status: Any) -> ControlPlaneRegistration:
    created = (_NOON - timedelta(seconds=seconds)).isoformat()
    metadata = {"name": "reg", "uid": "uid-2", "creationTimestamp": created}
    return ControlPlaneRegistration.model_validate(
        {"metadata": metadata, "spec": {"controlPlaneRef": {"name": "cp"}}, "status": status}
    )


def making(seconds: float, reason: str = "Provisioning") -> ControlPlane:
    since = (_NOON - timedelta(seconds=seconds)).isoformat()
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": since}
    return control_plane({"conditions": [ready]})


@pytest.mark.parametrize(
    ("one", "of", "seconds"),
    [
        (waiting(4), making(3), 27.0),
        (waiting(4), making(60), 26.0),
        (waiting(60), making(60), 0.0),
        (waiting(4), making(3, "ClassNotFound"), 7.0),
        (waiting(4), making(60, "ClassNotFound"), 6.0),
        # In a queue of many, the control plane waited for its turn, and the registration with it.
        (waiting(60), making(3), 27.0),
        (waiting(600), control_plane(), 10.0),
        (waiting(60), None, 0.0),
        (waiting(0.5), None, 1.5),
        # Another machine's clock is ahead.
        (waiting(4), making(-1), 0.0),
        (
            waiting(4, conditions=making(3).model_dump(mode="json", by_alias=True)["status"]["conditions"]),
            making(3),
            0.0,
        ),
    ],
)
def test_until_first_words_depends_on_ages_and_reason(
    one: ControlPlaneRegistration, of: ControlPlane | None, seconds: float
) -> None:
    assert max(0.0, until_first_words(one, control_plane=of, now=_NOON)) == pytest.approx(seconds)
