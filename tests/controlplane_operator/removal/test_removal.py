"""Removed, retained and untouched objects of a control plane. Only an adoption token gives access to retained data."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api.names import FINALIZER, controllers_secret_name
from kplane.controlplane_operator.controlplanes.retained_data import POD_SECURITY
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider.client.resources import NAMESPACES, SECRETS

from .conftest import AUTHORITIES, Data, Died, Mortal, Operator, authorities, begin, gone, record_of, remove_all, token

pytestmark = pytest.mark.integration

_GROUP = "controlplane.kplane.dev"


async def test_refused_control_plane_leaves_retained_data_untouched(client: Mortal) -> None:
    """An operator that had not read the record yet wrote finalizer and status of the new control plane."""
    name, data = "premature", Data()
    uid = await begin(client, name, policy="Retain")
    await Operator(client, data).make(name)
    await client.delete(CONTROL_PLANES, name)
    await Operator(client, data).remove(name)
    keys, record = await authorities(client, name), await client.get(NAMESPACES, f"kplane-cp-{name}")

    for policy in ("Destroy", "Retain"):
        await begin(client, name, policy=policy)
        with pytest.raises(ConditionError, match="keeps the data of an earlier control plane") as refused:
            await Operator(client, data).make(name)
        assert refused.value.reason == "DataRetained"
        await client.delete(CONTROL_PLANES, name)
        await Operator(client, data).remove(name)
        assert await gone(client, name)
    assert data.kept
    assert await authorities(client, name) == keys
    assert await client.get(NAMESPACES, f"kplane-cp-{name}") == record
    assert record["metadata"]["annotations"][f"{_GROUP}/retained-uid"] == uid


async def test_data_are_retained_after_deletion_without_operator(client: Mortal) -> None:
    name, data = "torn", Data()
    uid = await begin(client, name, policy="Destroy")
    tenant_authorities = await Operator(client, data).make(name)
    await client.delete(CONTROL_PLANES, name)
    await client.patch(CONTROL_PLANES, name, {"metadata": {"finalizers": None}})
    assert await gone(client, name)

    await begin(client, name, policy="Destroy")
    with pytest.raises(ConditionError, match="adoption-token"):
        await Operator(client, data).make(name)
    namespace = await record_of(client, name)
    assert namespace["labels"][f"{_GROUP}/retained"] == "true"
    assert namespace["annotations"][f"{_GROUP}/retained-uid"] == uid
    # The uid is in too many places to be a secret, and no text but the token is accepted.
    for wrong in (uid, "", "geheim\u00fc"):
        await client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": {f"{_GROUP}/adopt": wrong}}})
        with pytest.raises(ConditionError, match="does not match") as refused:
            await Operator(client, data).make(name)
        assert await token(client, name) not in refused.value.message
    assert data.shut_out_of == []
    adopt = {"metadata": {"annotations": {f"{_GROUP}/adopt": await token(client, name)}}}
    await client.patch(CONTROL_PLANES, name, adopt)
    assert await Operator(client, data).make(name) == tenant_authorities
    assert data.shut_out_of == [uid]
    await client.delete(CONTROL_PLANES, name)
    await remove_all(Operator(client, data), name)


async def test_policy_change_during_removal_takes_effect(client: Mortal) -> None:
    """Destroy deletes the data that Retain had only shut down: no keys are deleted while their data stay."""
    name, data = "undecided", Data()
    await begin(client, name, policy="Retain")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    client.deaths = set()
    with pytest.raises(Died):
        await operator.remove(name)
    client.deaths = None
    assert data.kept
    await client.patch(CONTROL_PLANES, name, {"spec": {"deletionPolicy": "Destroy"}})
    await remove_all(operator, name)
    assert not data.kept


@pytest.mark.parametrize("spec", [{}, {"endpointRef": {"name": "somebody-elses"}}], ids=["managed", "external"])
async def test_retain_deletes_namespace_if_no_keys_exist(client: Mortal, spec: dict[str, Any]) -> None:
    name = f"keyless-{len(spec)}"
    await begin(client, name, policy="Retain", spec=spec)
    data = Data(kept=False)
    operator = Operator(client, data)
    await operator.namespaces.ensure(await operator.look(name), take_over=data.take_over, volume=data.volume)
    await client.delete(CONTROL_PLANES, name)
    await remove_all(operator, name)


@pytest.mark.parametrize("published", [True, False])
async def test_data_without_their_keys_are_retained(client: Mortal, *, published: bool) -> None:
    """If the control plane was published or has data, the controllers' Secret stays to help restore the keys."""
    name, data = f"unlocked-{published}".lower(), Data(kept=not published)
    uid = await begin(client, name, policy="Retain")
    operator, namespace = Operator(client, data), f"kplane-cp-{name}"
    await operator.make(name)
    if published:
        await client.patch(CONTROL_PLANES, name, {"status": {"endpoint": "https://127.0.0.1:9"}}, subresource="status")
    await client.patch(SECRETS, AUTHORITIES, {"metadata": {"finalizers": None}}, namespace=namespace)
    await client.delete(SECRETS, AUTHORITIES, namespace=namespace)
    await client.delete(CONTROL_PLANES, name)
    await operator.remove(name)
    assert await gone(client, name)
    record = await record_of(client, name)
    assert record["annotations"][f"{_GROUP}/retained-uid"] == uid
    assert "deletionTimestamp" not in record
    [secret] = (await client.list(SECRETS, namespace=namespace)).items
    assert secret["metadata"]["name"] == controllers_secret_name(name)
    # Otherwise garbage collection would delete the Secret, because the control plane is gone.
    assert "ownerReferences" not in secret["metadata"]
    assert data.kept is not published
    await client.delete(NAMESPACES, namespace)


@pytest.mark.parametrize("policy", ["Destroy", "Retain"])
@pytest.mark.parametrize("stripped", [False, True], ids=["foreign", "label-stripped"])
async def test_removal_leaves_namespace_of_another_owner_untouched(
    client: Mortal, policy: str, *, stripped: bool
) -> None:
    """A refused control plane has a policy in its status already, and the namespace may hold objects with our names."""
    name, data = f"stranger-{policy.lower()}-{stripped}".lower(), Data()
    namespace = f"kplane-cp-{name}"
    await begin(client, name, policy=policy)
    operator = Operator(client, data)
    if stripped:
        await operator.make(name)
        await client.patch(NAMESPACES, namespace, {"metadata": {"labels": {f"{_GROUP}/name": None}}})
    else:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        with pytest.raises(ConditionError) as refused:
            await operator.make(name)
        assert refused.value.reason == "NamespaceConflict"
    before = await record_of(client, name)
    await client.delete(CONTROL_PLANES, name)
    await operator.remove(name)
    assert await gone(client, name)
    assert data.removed == []
    assert data.kept
    assert await record_of(client, name) == before
    assert operator.said("Deleted") == [
        f"the control plane is gone; nothing was touched, because namespace {namespace} does not belong to it"
    ]
    await client.delete(NAMESPACES, namespace)


async def test_removal_waits_if_another_namespace_replaced_its_own(client: Mortal) -> None:
    name, data = "replaced", Data()
    await begin(client, name, policy="Destroy")
    operator, namespace = Operator(client, data), f"kplane-cp-{name}"
    await operator.make(name)
    namespace_uid = (await client.get(NAMESPACES, namespace))["metadata"]["uid"]

    async def had(uid: str) -> None:
        await client.patch(CONTROL_PLANES, name, {"status": {"namespaceUID": uid}}, subresource="status")

    await had("a-former-one")
    await client.delete(CONTROL_PLANES, name)
    result = await operator.remove(name)
    assert result is not None
    assert result.requeue_after_seconds
    conditions = (await operator.look(name)).status.conditions
    [message] = {condition.message for condition in conditions}
    assert f"a user deleted namespace {namespace} and made another one of that name" in message
    assert "Then delete that namespace, and the removal continues" in message
    assert data.removed == []
    # The same holds for a namespace that the operator creates again.
    await had(namespace_uid)
    await remove_all(operator, name)
    assert not data.kept


async def test_removal_reports_refused_write_and_retries(client: Mortal) -> None:
    name, data = "forbidden", Data()
    await begin(client, name, policy="Destroy")
    operator, namespace = Operator(client, data), f"kplane-cp-{name}"
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    client.refused = {namespace}
    result = await operator.remove(name)
    assert result is not None
    assert result.requeue_after_seconds
    conditions = {condition.type: condition for condition in (await operator.look(name)).status.conditions}
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "Deleting")
    assert (conditions["Deleting"].status, conditions["Deleting"].reason) == ("True", "RemovingNamespace")
    message = "the management cluster refused a write: a policy of somebody's says no"
    assert {condition.message for condition in conditions.values()} == {message}
    client.refused = set()
    await remove_all(operator, name)
    assert operator.said("Deleted") == ["the control plane is gone; its data by policy Destroy"]


async def test_pod_security_labels_of_namespace_are_restored(client: Mortal) -> None:
    """An admission policy may refuse every write to a namespace without these labels.

    The version label keeps the rules for pods unchanged over an upgrade of the management cluster.
    """
    assert POD_SECURITY.keys() == {f"pod-security.kubernetes.io/enforce{suffix}" for suffix in ("", "-version")}
    name, data = "lax", Data()
    namespace, drift = f"kplane-cp-{name}", {"metadata": {"labels": dict.fromkeys(POD_SECURITY)}}

    async def is_mended() -> bool:
        return POD_SECURITY.items() <= (await record_of(client, name))["labels"].items()

    await begin(client, name, policy="Retain")
    await Operator(client, data).make(name)
    await client.patch(NAMESPACES, namespace, drift)
    await Operator(client, data).make(name)
    assert await is_mended()
    await client.patch(NAMESPACES, namespace, drift)
    await client.delete(CONTROL_PLANES, name)
    await Operator(client, data).remove(name)
    assert await is_mended()
    await client.patch(NAMESPACES, namespace, drift)
    await begin(client, name, policy="Destroy", adopt=await token(client, name))
    await Operator(client, data).make(name)
    assert await is_mended()
    await client.delete(CONTROL_PLANES, name)
    await remove_all(Operator(client, data), name)


async def test_deleted_event_reports_untouched_if_nothing_was_created(client: Mortal) -> None:
    name, data = "unbegun", Data()
    body = {"metadata": {"name": name, "finalizers": [FINALIZER]}, "spec": {"deletionPolicy": "Destroy"}}
    await client.create(CONTROL_PLANES, body)
    await client.delete(CONTROL_PLANES, name)
    operator = Operator(client, data)
    await operator.remove(name)
    assert await gone(client, name)
    assert data.removed == []
    assert operator.said("Deleted") == [
        "the control plane is gone; nothing was touched, because nothing had been made for it"
    ]
