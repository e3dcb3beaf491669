"""Renewal of published credentials: its time, and webhooks that refuse or delay it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from kplane.api import AuthSpec, ControlPlane
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes
from kplane.controlplane_operator.controlplanes.credentials import CredentialIssuer
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.pki.issuing import Identity, issue_certificate, sign_token
from kplane.pki.primitives import create_authority, create_signing_key
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import NAMESPACES, VALIDATING_WEBHOOK_CONFIGURATIONS
from kplane.provider.errors import ApiError, Forbidden, ServerError, Unreachable
from kplane.provider.testing import FakeCluster

LIFETIME = AuthSpec().lifetime_asked
TWO_DAYS = timedelta(days=2)


def signed() -> Identity:
    key = create_signing_key()
    return sign_token(key, namespace="kplane-system", service_account="a", uid="u", lifetime=LIFETIME)


def certified() -> Identity:
    return issue_certificate(create_authority("a"), user="u", lifetime=LIFETIME)


@pytest.mark.parametrize("issue", [signed, certified])
def test_credentials_last_two_days_after_their_renewal_is_due(issue: Callable[[], Identity]) -> None:
    identity = issue()
    assert identity.expires_at - identity.renew_at >= TWO_DAYS - timedelta(minutes=1)


@pytest.mark.parametrize(
    "error",
    [
        ServerError(500, "InternalError", 'Internal error occurred: failed calling webhook "a.b": failed to call'),
        Forbidden(403, "Forbidden", 'admission webhook "a.b" denied the request: no'),
        ApiError(400, "BadRequest", 'admission webhook "a.b" denied the request: no'),
    ],
)
def test_tenant_error_names_the_webhook_that_refused(error: ApiError) -> None:
    failure = tenant_error("setting up the control plane", error)
    assert failure.reason is Reason.WEBHOOK_REFUSED
    assert "mend or delete webhook 'a.b'" in failure.message


def test_tenant_error_of_another_refusal_names_no_webhook() -> None:
    assert tenant_error("x", Forbidden(403, "Forbidden", "no")).reason is Reason.CREDENTIALS_REJECTED
    assert tenant_error("x", ServerError(500, "InternalError", "no")).reason is Reason.BOOTSTRAP_FAILED


async def test_renewal_error_names_expiry_of_published_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    async def set_up(*_: object, **__: object) -> NoReturn:
        raise ServerError(500, "InternalError", 'failed calling webhook "a.b": no')

    async def identified(_: str) -> None: ...

    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "u"}, "spec": {}})
    stores = Stores()
    expiry = {"controlplane.kplane.dev/expires-at": "2099-01-02T03:04:05+00:00"}
    metadata = {
        "name": "controlplane-acme-kubeconfig",
        "namespace": "kplane-cp-acme",
        "uid": "s",
        "annotations": expiry,
    }
    stores.secrets.apply({"metadata": {**metadata, "resourceVersion": "1"}, "data": {}})
    context = cast("OperatorContext", SimpleNamespace(stores=stores, connections=None))
    issuer = CredentialIssuer(context, probes=CredentialProbes(context, use=HostNameUse(context)))
    monkeypatch.setattr(issuer, "_set_up", set_up)
    url = "https://127.0.0.1:1"
    provision = Provision(Addresses(url, url, url), administrator=ClusterConfig(url), authorities=None)
    message = (
        "the published credentials end at 2099-01-02 03:04 UTC: they cannot be renewed, and no client gets in then"
    )
    with pytest.raises(ConditionError, match=message):
        await issuer.ensure(control_plane, provision=provision, auth=AuthSpec(), identified=identified)


@pytest.mark.parametrize("write_sent", [True, False])
async def test_slow_webhook_leaves_wake_incomplete_if_write_was_sent(
    monkeypatch: pytest.MonkeyPatch, *, write_sent: bool
) -> None:
    async def bootstrap(*_: object, **__: object) -> NoReturn:
        raise Unreachable("PATCH: no answer in time", kind="timeout", write_sent=write_sent)

    async def version(*_: object) -> str:
        return "v1.36.3"

    async def identified(_: str) -> None: ...

    status = {"endpoint": "https://127.0.0.1:1", "clusterUid": "c"}
    metadata = {"name": "acme", "uid": "u"}
    control_plane = ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})
    tenant = FakeCluster("tenant")
    for namespace in ("kube-system", "kplane-system"):
        await tenant.client.apply(NAMESPACES, {"metadata": {"name": namespace}}, force=True)
    rule = {"apiGroups": [""], "apiVersions": ["*"], "resources": ["serviceaccounts"], "operations": ["*"]}
    webhook = {"name": "slow.example.com", "rules": [rule], "failurePolicy": "Ignore", "timeoutSeconds": 10}
    await tenant.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": "slow"}, "webhooks": [webhook]})
    context = cast("OperatorContext", SimpleNamespace(stores=Stores(), connections=None))
    issuer = CredentialIssuer(context, probes=CredentialProbes(context, use=HostNameUse(context)))
    monkeypatch.setattr(f"{CredentialIssuer.__module__}.bootstrap", bootstrap)
    monkeypatch.setattr(issuer, "_client", lambda _: contextlib.nullcontext(tenant.client))
    monkeypatch.setattr(issuer, "_version", version)
    monkeypatch.setattr(issuer, "_reusable", lambda *_, **__: (certified(), signed()))
    url = "https://127.0.0.1:1"
    provision = Provision(Addresses(url, url, url), administrator=ClusterConfig(url), authorities=None)
    renewal = issuer.ensure(control_plane, provision=provision, auth=AuthSpec(), identified=identified)
    if write_sent:
        incomplete = (await renewal).incomplete
        assert incomplete is not None
        assert incomplete.reason is Reason.ENDPOINT_UNREACHABLE
        assert "webhook 'slow.example.com' of ValidatingWebhookConfiguration slow (Ignore, 10 s)" in incomplete.message
        assert "the published credentials end at" in incomplete.message
    else:
        # The connection failed before the write, which no webhook explains. So the wake fails, and is tried again.
        with pytest.raises(ConditionError) as raised:
            await renewal
        assert raised.value.reason.transient
        assert raised.value.guards == ()
    await tenant.aclose()


async def test_ensure_reads_lease_guards_again_once_spec_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of a move is requested by a change of the spec, and names the webhooks that the move would meet."""

    async def bootstrap(*_: object, **__: object) -> None: ...

    async def version(*_: object) -> str:
        return "v1.36.3"

    async def identified(_: str) -> None: ...

    def control_plane(generation: int) -> ControlPlane:
        ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": ""}
        conditions = [{**ready, "lastTransitionTime": "2026-11-26T01:00:00Z"}]
        status = {"endpoint": "https://127.0.0.1:1", "clusterUid": "c", "version": "v1.36.3", "observedGeneration": 1}
        metadata = {"name": "acme", "uid": "u", "generation": generation}
        status = {**status, "conditions": conditions}
        return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})

    tenant, identities = FakeCluster("tenant"), (certified(), signed())
    await tenant.client.apply(NAMESPACES, {"metadata": {"name": "kube-system"}}, force=True)
    shared = SimpleNamespace(stores=Stores(), triggers=Triggers(), connections=None, gateway=None)
    context = cast("OperatorContext", shared)
    issuer = CredentialIssuer(context, probes=CredentialProbes(context, use=HostNameUse(context)))
    monkeypatch.setattr(f"{CredentialIssuer.__module__}.bootstrap", bootstrap)
    monkeypatch.setattr(issuer, "_client", lambda _: contextlib.nullcontext(tenant.client))
    monkeypatch.setattr(issuer, "_version", version)
    monkeypatch.setattr(issuer, "_reusable", lambda *_, **__: identities)
    url = "https://127.0.0.1:1"
    provision = Provision(Addresses(url, url, url), administrator=ClusterConfig(url), authorities=None)

    async def guards(generation: int) -> list[str] | None:
        issued = await issuer.ensure(
            control_plane(generation), provision=provision, auth=AuthSpec(), identified=identified
        )
        return [guard.webhook for guard in issued.lease_guards] if issued.lease_guards is not None else None

    assert await guards(1) == []
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
    webhook = {"name": "slow.example.com", "rules": [rule], "failurePolicy": "Ignore", "timeoutSeconds": 10}
    await tenant.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": "slow"}, "webhooks": [webhook]})
    # The inside is verified, so a pass for another reason does not read the webhooks again.
    assert await guards(1) == []
    assert await guards(2) == ["slow.example.com"]
    assert await guards(1) == ["slow.example.com"]
    await tenant.aclose()
