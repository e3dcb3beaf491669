"""Permissions of the operator and of mcm in the management cluster, as reviewed by the API server."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from benchmarks.surroundings import SECRETS_READER, open_namespace
from kplane.provider import AlreadyExists, Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import NAMESPACES, ROLE_BINDINGS, ROLES, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_GROUP = "controlplane.kplane.dev"


async def may(client: Client, verb: str, resource: str, *, group: str = "", **attributes: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": verb, "resource": resource, "group": group, **attributes}},
    }
    answer = await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    return bool(answer["status"]["allowed"])


async def test_mcm_reads_only_registrations_and_their_resolved_secret(field: Any, house: Any) -> None:
    await field.create(
        "ControlPlaneRegistration", "served", controlPlaneRef={"name": "house"}, services=["controllers"]
    )
    registration = await field.becomes("ControlPlaneRegistration", "served", "Resolved")
    secret = registration["status"]["resolvedControllersSecretRef"]
    async with Client(ClusterConfig.load(field.handle.mcm_kubeconfig), field_manager="kplane") as mcm:
        for verb in ("get", "watch"):
            # The API server's authorizer watches bindings, and lags behind a write by some milliseconds.
            await field.eventually(lambda verb=verb: may(mcm, verb, "secrets", **secret))
        assert (await mcm.get(SECRETS, secret["name"], namespace=secret["namespace"]))["data"]["sa.key"]
        for verb in ("list", "watch"):
            assert await may(mcm, verb, "controlplaneregistrations", group=_GROUP)
        for verb in ("get", "list", "watch"):
            assert not await may(mcm, verb, "controlplanes", group=_GROUP)
            assert not await may(mcm, verb, "secrets", namespace=secret["namespace"])
            assert not await may(mcm, verb, "secrets")
        for name in ("control-plane-authorities", "controlplane-house-kubeconfig"):
            assert not await may(mcm, "get", "secrets", name=name, namespace=secret["namespace"])
        for verb in ("create", "update", "patch", "delete"):
            assert not await may(mcm, verb, "secrets", **secret)
            assert not await may(mcm, verb, "controlplaneregistrations", group=_GROUP)
        from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS

        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, "served")

        async def still_allowed() -> bool:
            return await may(mcm, "get", "secrets", **secret)

        await field.eventually(still_allowed, lambda allowed: not allowed)


async def test_secret_in_user_namespace_needs_a_rolebinding(field: Any, house: dict[str, Any]) -> None:
    await field.client.create(NAMESPACES, {"metadata": {"name": "acme"}})
    reference = {"name": "kubeconfig", "namespace": "acme"}
    published = house["status"]["kubeconfigSecretRef"]
    data = (await field.client.get(SECRETS, published["name"], namespace=published["namespace"]))["data"]
    labels = {f"{_GROUP}/allow-registration": "true", f"{_GROUP}/allow-endpoint": "true"}
    await field.client.create(SECRETS, {"metadata": {**reference, "labels": labels}, "data": data})
    url = house["status"]["endpoint"]
    await field.create("ControlPlaneEndpoint", "acme", endpoint=url, credentialsSecretRef=reference)
    await field.create(
        "ControlPlaneRegistration", "acme", controlPlaneRef={"name": "house"}, kubeconfigSecretRef=reference
    )
    command = (
        f"run: kubectl create rolebinding {SECRETS_READER} --namespace=acme --clusterrole={SECRETS_READER}"
        " --serviceaccount=kplane-system:controlplane-operator"
    )
    for kind in ("ControlPlaneEndpoint", "ControlPlaneRegistration"):
        obj = await field.becomes(kind, "acme", "SecretsNotReadable")
        (message,) = [condition["message"] for condition in obj["status"]["conditions"] if condition["type"] == "Ready"]
        cause, _, remedy = message.partition("; ")
        assert cause == "the operator may not read Secret acme/kubeconfig"
        assert remedy == f"to let it read the Secrets of that namespace, {command}"
    await open_namespace(field.client, "acme")
    for kind in ("ControlPlaneEndpoint", "ControlPlaneRegistration"):
        await field.eventually(lambda kind=kind: is_ready(field, kind, "acme"), timeout=60.0)
    # The operator can grant mcm access to that Secret, because it has the same access.
    async with Client(ClusterConfig.load(field.handle.mcm_kubeconfig), field_manager="kplane") as mcm:
        await field.eventually(lambda: may(mcm, "get", "secrets", **reference))


async def is_ready(field: Any, kind: str, name: str) -> bool:
    conditions = (await field.get(kind, name)).get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


async def test_operator_binds_itself_only_in_management_namespaces(field: Any, house: Any) -> None:
    role = SECRETS_READER.removesuffix("-reader")
    namespace = "kplane-cp-house"

    async def binding() -> dict[str, Any] | None:
        try:
            role_binding = await field.client.get(ROLE_BINDINGS, role, namespace=namespace)
        except NotFound:
            return None
        return {part: role_binding.get(part) for part in ("roleRef", "subjects")}

    written = await binding()
    assert written == {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "controlplane-operator", "namespace": "kplane-system"}],
    }
    async with Client(ClusterConfig.load(field.handle.operator_kubeconfig), field_manager="kplane") as operator:
        assert await may(operator, "list", "secrets", namespace=namespace)
        for elsewhere in ("kube-system", "kube-public"):
            for verb in ("get", "list", "watch", "create", "patch", "delete"):
                assert not await may(operator, verb, "secrets", namespace=elsewhere), (verb, elsewhere)
        # The operator restores the binding in seconds: its watch continues, and its writes are refused meanwhile.
        await field.client.delete(ROLE_BINDINGS, role, namespace=namespace)
        await field.eventually(binding, lambda found: found == written)
        await field.client.patch(ROLE_BINDINGS, role, {"subjects": []}, namespace=namespace)
        await field.eventually(binding, lambda found: found == written)
        await field.eventually(lambda: may(operator, "list", "secrets", namespace=namespace))


async def test_registration_uses_user_secret_only_with_allow_label(field: Any, house: dict[str, Any]) -> None:
    reference = house["status"]["kubeconfigSecretRef"]
    published = await field.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
    body = {"metadata": {"name": "private", "namespace": "default"}, "data": published["data"]}
    await field.client.apply(SECRETS, body, force=True)
    await field.create(
        "ControlPlaneRegistration",
        "curious",
        controlPlaneRef={"name": "house"},
        services=["controllers"],
        kubeconfigSecretRef={"name": "private", "namespace": "default"},
    )
    await field.becomes("ControlPlaneRegistration", "curious", "SecretNotAllowed")
    async with Client(ClusterConfig.load(field.handle.mcm_kubeconfig), field_manager="kplane") as mcm:
        assert not await may(mcm, "get", "secrets", name="private", namespace="default")
        label = {"metadata": {"labels": {f"{_GROUP}/allow-registration": "true"}}}
        await field.client.patch(SECRETS, "private", label, namespace="default")
        await field.becomes("ControlPlaneRegistration", "curious", "Resolved", timeout=30.0)

        async def allowed() -> bool:
            return await may(mcm, "get", "secrets", name="private", namespace="default")

        await field.eventually(allowed)
        await field.client.delete(SECRETS, "private", namespace="default")
        await field.becomes("ControlPlaneRegistration", "curious", "SecretNotFound", timeout=30.0)
        await field.eventually(allowed, lambda found: not found)


async def test_registration_resolves_only_published_or_allowed_secrets(field: Any, house: Any) -> None:
    body = {"metadata": {"name": "theirs", "namespace": "kplane-cp-house"}}
    await field.client.apply(SECRETS, body, force=True)
    reasons = {
        "control-plane-authorities": "SecretNotAllowed",
        "control-plane-certificates": "SecretNotAllowed",
        "theirs": "SecretNotAllowed",
        "controlplane-house-kubeconfig": "Resolved",
        "controlplane-house-controllers": "Resolved",
    }
    for secret in reasons:
        # The registrations request no service, because a service has a single registration.
        spec = {"kubeconfigSecretRef": {"name": secret, "namespace": "kplane-cp-house"}}
        await field.create("ControlPlaneRegistration", secret, controlPlaneRef={"name": "house"}, **spec)
    async with Client(ClusterConfig.load(field.handle.mcm_kubeconfig), field_manager="kplane") as mcm:
        for secret, reason in reasons.items():
            registration = await field.becomes("ControlPlaneRegistration", secret, reason)
            assert ("resolvedKubeconfigSecretRef" in registration["status"]) is (reason == "Resolved")
            readable = reason == "Resolved" and secret.endswith("controllers")
            for verb in ("get", "watch"):
                attributes = {"name": secret, "namespace": "kplane-cp-house"}
                # mcm's instances use the kubeconfig of the controllers instead of the administrator's.
                await field.eventually(
                    lambda verb=verb, attributes=attributes: may(mcm, verb, "secrets", **attributes),
                    lambda found, readable=readable: found is readable,
                )
    conditions = (await field.get("ControlPlaneRegistration", "theirs"))["status"]["conditions"]
    assert "name controlplane-house-kubeconfig or controlplane-house-controllers" in str(conditions)
    label = {"metadata": {"labels": {f"{_GROUP}/allow-registration": "true"}}}
    await field.client.patch(SECRETS, "theirs", label, namespace="kplane-cp-house")
    await field.becomes("ControlPlaneRegistration", "theirs", "Resolved", timeout=30.0)


async def test_deleted_or_changed_grant_of_mcm_is_restored(field: Any, house: Any) -> None:
    spec = {"controlPlaneRef": {"name": "house"}, "services": ["controllers"]}
    uid = (await field.create("ControlPlaneRegistration", "robbed", **spec))["metadata"]["uid"]
    await field.becomes("ControlPlaneRegistration", "robbed", "Resolved")
    selection = {"namespace": "kplane-cp-house", "label_selector": f"{_GROUP}/registration-uid={uid}"}

    async def grant() -> list[dict[str, Any]]:
        object_lists = [(await field.client.list(resource, **selection)).items for resource in (ROLES, ROLE_BINDINGS)]
        return [
            {part: obj[part] for part in ("rules", "roleRef", "subjects") if part in obj}
            | {"labels": obj["metadata"]["labels"]}
            for objects in object_lists
            for obj in objects
        ]

    (role,) = (await field.client.list(ROLES, **selection)).items
    name, namespace = role["metadata"]["name"], role["metadata"]["namespace"]
    granted = await grant()
    assert len(granted) == 2

    async def delete(resource: Resource) -> None:
        await field.client.delete(resource, name, namespace=namespace)

    async def patch(resource: Resource, **change: Any) -> None:
        await field.client.patch(resource, name, change, namespace=namespace)

    async def bind_another_role() -> None:
        await delete(ROLE_BINDINGS)
        role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        metadata = {"name": name, "namespace": namespace, "labels": granted[1]["labels"]}
        with contextlib.suppress(AlreadyExists):  # the operator may be faster
            await field.client.create(ROLE_BINDINGS, {"metadata": metadata, "roleRef": role_ref})

    for change in (
        lambda: delete(ROLES),
        lambda: delete(ROLE_BINDINGS),
        lambda: patch(ROLES, rules=[{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]),
        lambda: patch(ROLE_BINDINGS, subjects=[]),
        lambda: patch(ROLE_BINDINGS, metadata={"labels": {f"{_GROUP}/registration": None}}),
        lambda: patch(ROLES, metadata={"labels": {f"{_GROUP}/registration-uid": "another"}}),
        bind_another_role,
    ):
        await change()
        await field.eventually(grant, lambda found: found == granted)


async def test_operator_identity_lacks_permissions_that_it_does_not_use(field: Any) -> None:
    async with Client(ClusterConfig.load(field.handle.operator_kubeconfig), field_manager="kplane") as operator:
        assert await may(operator, "patch", "controlplanes", group=_GROUP, subresource="status")
        for verb, resource, group in (
            ("delete", "controlplanes", _GROUP),
            ("create", "controlplaneclasses", _GROUP),
            ("update", "controlplaneregistrations", _GROUP),
            ("delete", "controlplaneregistrations", _GROUP),
            ("update", "secrets", ""),
            ("update", "namespaces", ""),
            ("list", "pods", ""),
            ("update", "clusterroles", "rbac.authorization.k8s.io"),
            ("escalate", "clusterroles", "rbac.authorization.k8s.io"),
            ("bind", "clusterroles", "rbac.authorization.k8s.io"),
            ("get", "serviceaccounts", ""),
            ("escalate", "roles", "rbac.authorization.k8s.io"),
            ("bind", "roles", "rbac.authorization.k8s.io"),
            ("impersonate", "users", ""),
        ):
            assert not await may(operator, verb, resource, group=group), (verb, resource)
