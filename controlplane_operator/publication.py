"""Publishes a running control plane: its inside is set up, its Secrets are written, then its status, in one write."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any, Final

from api import (
    AuthModel,
    AuthSpec,
    ControlPlane,
    ControlPlaneClass,
    ControlPlanePhase,
    SecretReference,
    is_true,
)
from api.names import (
    CA_KEY,
    KUBECONFIG_EXTERNAL_KEY,
    KUBECONFIG_KEY,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from controlplane_operator.backoff import jittered
from controlplane_operator.belongings import ensure_default_registration, ensure_endpoint
from controlplane_operator.bootstrap import (
    ADMIN_ACCOUNT,
    CONTROLLERS_ACCOUNT,
    Subject,
    bootstrap,
)
from controlplane_operator.control_plane_class import unsupported_addons
from controlplane_operator.credentials import render_kubeconfig, user_of
from controlplane_operator.errors import BootstrapFailed
from controlplane_operator.issuing import (
    Identity,
    issue_certificate,
    issue_token,
    of_certificate,
    reusable,
    until_renewal,
)
from controlplane_operator.management import Management
from controlplane_operator.provision import Provision
from controlplane_operator.secrets import write_secret
from controlplane_operator.status import with_condition, with_supported
from controlplane_operator.trouble import Trouble, trouble_with
from provider import Client, ProviderError, Result, Unauthorized

__all__ = ["Publication", "not_acted_on"]

_CALL_SECONDS: Final = 5.0
_VERIFIED_SECONDS: Final = 300.0
"""So long what was found in order inside a control plane is taken for granted."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """Who may get into the control plane, and what it says it is."""

    admin: Identity
    controllers: Identity
    version: str


def not_acted_on(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> list[str]:
    """Say, in sentences, what of the spec and the class is accepted and has no effect."""
    told = unsupported_addons(chosen) if chosen is not None else []
    dedicated = control_plane.spec.dedicated
    if dedicated is not None and (dedicated.provider_ref is not None or dedicated.parameters_ref is not None):
        told.append(
            "spec.dedicated.providerRef and parametersRef are not acted on: kplane runs the control plane itself"
        )
    return told


class Publication:
    """Publishes control planes."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._verified: dict[str, tuple[str, float]] = {}

    def forget(self, uid: str) -> None:
        """The control plane with this uid is gone."""
        self._verified.pop(uid, None)

    async def publish(
        self, control_plane: ControlPlane, *, provision: Provision, chosen: ControlPlaneClass | None
    ) -> Result:
        """Publish a control plane whose API server runs. Raises Trouble where its inside cannot be set up.

        Returns when to come again: to renew what expires, and to mend what somebody changed inside.
        """
        auth = chosen.spec.auth if chosen is not None else AuthSpec()
        if provision.authorities is not None:
            await ensure_endpoint(self._management, control_plane, addresses=provision.addresses)
        inside = await self._inside(control_plane, provision=provision, auth=auth)
        await self._write_secrets(control_plane, provision=provision, inside=inside)
        await ensure_default_registration(self._management, control_plane, chosen=chosen)
        await self._write_status(control_plane, provision=provision, inside=inside, chosen=chosen)
        return Result(min(jittered(_VERIFIED_SECONDS), until_renewal(inside.admin, inside.controllers)))

    async def _inside(self, control_plane: ControlPlane, *, provision: Provision, auth: AuthSpec) -> _Inside:
        by_certificate = auth.model is AuthModel.X509
        if by_certificate and provision.authorities is None:
            raise Trouble(
                "Failed",
                "auth.model x509 of the class needs the control plane's client CA, which whoever runs its API server"
                " keeps; use model token",
                waits_for_event=True,
            )
        admin = reusable(self._published(control_plane, kubeconfig_secret_name), by_certificate=by_certificate)
        controllers = (
            of_certificate(provision.controllers)
            if provision.controllers is not None
            else reusable(self._published(control_plane, controllers_secret_name), by_certificate=False)
        )
        version = control_plane.status.version
        uid, fingerprint = control_plane.metadata.uid or "", _fingerprint(provision, auth)
        ready = is_true(control_plane.status.conditions, "Ready")
        if ready and admin and controllers and version and self._is_verified(uid, fingerprint):
            return _Inside(admin, controllers, version)
        try:
            inside = await self._set_up(control_plane, provision, auth=auth, admin=admin, controllers=controllers)
        except ProviderError as error:
            self.forget(uid)
            raise trouble_with("setting up the control plane", error) from error
        except BootstrapFailed as error:
            self.forget(uid)
            raise Trouble("Bootstrapping", str(error)) from error
        self._verified[uid] = fingerprint, time.monotonic() + jittered(_VERIFIED_SECONDS) * 0.75
        return inside

    async def _set_up(
        self,
        control_plane: ControlPlane,
        provision: Provision,
        *,
        auth: AuthSpec,
        admin: Identity | None,
        controllers: Identity | None,
    ) -> _Inside:
        by_certificate = auth.model is AuthModel.X509
        # By uid, because no certificate can be taken back: who has one of an earlier control plane, whose data and CAs
        # this one took over, is another user.
        user = Subject("User", f"kplane:admin:{control_plane.metadata.uid}")
        certificate = provision.controllers
        async with Client(provision.administrator, timeout_seconds=_CALL_SECONDS) as client:
            await bootstrap(
                client,
                admin=user if by_certificate else ADMIN_ACCOUNT,
                admin_role=auth.default_role,
                controllers=Subject("User", user_of(certificate.certificate)) if certificate else CONTROLLERS_ACCOUNT,
            )
            if admin is None or await _version(provision, admin) is None:
                if by_certificate and provision.authorities is not None:
                    admin = issue_certificate(provision.authorities.client, user=user.name)
                else:
                    admin = await issue_token(client, service_account=ADMIN_ACCOUNT.name)
            if controllers is None or await _version(provision, controllers) is None:
                controllers = await issue_token(client, service_account=CONTROLLERS_ACCOUNT.name)
        version = await _version(provision, admin)
        if version is None:
            raise Trouble(
                "CredentialsRejected", "the control plane does not accept the credentials that it just issued"
            )
        return _Inside(admin, controllers, version)

    async def _write_secrets(self, control_plane: ControlPlane, *, provision: Provision, inside: _Inside) -> None:
        ca = provision.administrator.ca_data
        trust = {CA_KEY: ca} if ca is not None else {}

        def kubeconfig(server: str, identity: Identity, user: str) -> bytes:
            return render_kubeconfig(server=server, ca=ca, user=user, token=identity.token, client=identity.client)

        addresses = provision.addresses
        await write_secret(
            self._management,
            control_plane,
            name=kubeconfig_secret_name(control_plane.name),
            data={
                KUBECONFIG_KEY: kubeconfig(addresses.internal, inside.admin, "admin"),
                KUBECONFIG_EXTERNAL_KEY: kubeconfig(addresses.external, inside.admin, "admin"),
                **trust,
            },
            annotations=inside.admin.annotations(),
        )
        keys = {}
        if provision.authorities is not None:
            keys = {
                "sa.key": provision.authorities.service_account_key,
                "signing-ca.crt": provision.authorities.client.certificate,
                "signing-ca.key": provision.authorities.client.key,
            }
        await write_secret(
            self._management,
            control_plane,
            name=controllers_secret_name(control_plane.name),
            data={KUBECONFIG_KEY: kubeconfig(addresses.internal, inside.controllers, "controllers"), **trust, **keys},
            annotations=inside.controllers.annotations(),
        )

    async def _write_status(
        self, control_plane: ControlPlane, *, provision: Provision, inside: _Inside, chosen: ControlPlaneClass | None
    ) -> None:
        namespace = management_namespace(control_plane.name)
        conditions = with_condition(
            control_plane.status.conditions,
            of=control_plane,
            status="True",
            reason="Reconciled",
            message="the control plane is ready",
        )
        missing = not_acted_on(control_plane, chosen=chosen)
        status = control_plane.status.model_copy(
            update={
                "phase": ControlPlanePhase.READY,
                "endpoint": provision.addresses.internal,
                "endpoints": provision.addresses.published(),
                "kubeconfig_secret_ref": SecretReference(
                    name=kubeconfig_secret_name(control_plane.name), namespace=namespace
                ),
                "controllers_secret_ref": SecretReference(
                    name=controllers_secret_name(control_plane.name), namespace=namespace
                ),
                "version": inside.version,
                "observed_generation": control_plane.metadata.generation,
                "conditions": with_supported(conditions, of=control_plane, missing=missing),
            }
        )
        await self._management.status.write(self._management.stores.control_planes, control_plane, status=status)

    def _published(self, control_plane: ControlPlane, name: Any) -> dict[str, Any] | None:
        key = management_namespace(control_plane.name), name(control_plane.name)
        return self._management.stores.secrets.get(key)

    def _is_verified(self, uid: str, fingerprint: str) -> bool:
        known, until = self._verified.get(uid, ("", 0.0))
        return known == fingerprint and time.monotonic() < until


async def _version(provision: Provision, identity: Identity) -> str | None:
    """Ask for the version as this identity; None where the control plane does not let it in."""
    try:
        async with Client(identity.config(provision.administrator), timeout_seconds=_CALL_SECONDS) as client:
            answer = await client.request("GET", "/version")
    except Unauthorized:
        return None
    return str(answer.get("gitVersion", "unknown")) if isinstance(answer, dict) else "unknown"


def _fingerprint(provision: Provision, auth: AuthSpec) -> str:
    parts = (
        provision.administrator.server.encode(),
        provision.administrator.ca_data or b"",
        provision.administrator.token.encode() if provision.administrator.token is not None else b"",
        auth.model.encode(),
        auth.default_role.encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
