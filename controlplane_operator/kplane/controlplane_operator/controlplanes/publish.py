"""Publishes a running control plane: its inside is set up, its Secrets are written, then its status, in one write."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any, Final

from kplane.api import AuthModel, AuthSpec, ControlPlane, ControlPlaneClass, ControlPlanePhase, SecretReference, is_true
from kplane.api.names import (
    CA_KEY,
    KUBECONFIG_EXTERNAL_KEY,
    KUBECONFIG_KEY,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.controlplane_operator.backends.api_server_plan import not_held_to, with_up_to_date
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.controlplanes.owned_objects import ensure_default_registration, ensure_endpoint
from kplane.controlplane_operator.controlplanes.policy import class_in_force
from kplane.controlplane_operator.errors import BootstrapFailed, RoleMissing
from kplane.controlplane_operator.pki.issuing import (
    Identity,
    issue_certificate,
    issue_token,
    issued_under,
    of_certificate,
    reusable,
    until_renewal,
)
from kplane.controlplane_operator.pki.kubeconfig import render_kubeconfig
from kplane.controlplane_operator.pki.primitives import user_of
from kplane.controlplane_operator.pki.rotator import refused_rotation, rotation_status
from kplane.controlplane_operator.pki.secrets import data_of, write_secret
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.status.writer import with_condition, with_supported
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT, Subject, bootstrap
from kplane.controlplane_operator.tenant.client import reported_version, tenant_client
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.provider import Client, ClusterConfig, KubeconfigError, ProviderError, Result, Unauthorized
from kplane.workloads import Runtime

__all__ = ["Publication"]

_CALL_SECONDS: Final = 5.0
_LACKING_SECONDS: Final = 15.0
"""How often a role that somebody may create is looked for."""
_VERIFIED_SECONDS: Final = 300.0
"""So long what was found in order inside a control plane is taken for granted."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """Who may get into the control plane, and what it says it is."""

    admin: Identity
    controllers: Identity
    version: str
    lacking: RoleMissing | None = None
    """Why the administrator may do nothing; what is published is kept up all the same."""


def _not_acted_on(control_plane: ControlPlane) -> list[str]:
    told = refused_rotation(control_plane)
    dedicated = control_plane.spec.dedicated
    if dedicated is not None and (dedicated.provider_ref is not None or dedicated.parameters_ref is not None):
        told.append(
            "spec.dedicated.providerRef and parametersRef are not acted on: kplane runs the control plane itself"
        )
    return told


class Publication:
    """Publishes control planes."""

    def __init__(self, context: OperatorContext, *, switch: EndpointSwitch, runtime: Runtime) -> None:
        self._context = context
        self._switch = switch
        self._runtime = runtime
        self._verified: dict[str, tuple[str, float]] = {}
        self._unsettled: set[str] = set()

    def forget(self, uid: str) -> None:
        """The control plane with this uid is gone."""
        self._verified.pop(uid, None)
        self._unsettled.discard(uid)

    def not_acted_on(self, control_plane: ControlPlane) -> list[str]:
        """Say, in sentences, what of the spec and the class is accepted and has no effect."""
        chosen = class_in_force(control_plane, classes=self._context.stores.classes).chosen
        held = not_held_to(control_plane, chosen=chosen, runtime=self._runtime)
        return [*_not_acted_on(control_plane), *held]

    async def publish(
        self, control_plane: ControlPlane, *, provision: Provision, chosen: ControlPlaneClass | None
    ) -> Result:
        """Publish a control plane whose API server runs. Raises ConditionError where its inside cannot be set up.

        Returns when to come again: to renew what expires, and to mend what somebody changed inside.
        """
        auth = chosen.spec.auth if chosen is not None else AuthSpec()
        self._note_replacement(control_plane.metadata.uid or "", settled=provision.settled)
        taken = await self._ensure_endpoint(control_plane, provision=provision)
        inside = await self._inside(control_plane, provision=provision, auth=auth)
        async with self._switch.moving(control_plane, to=provision.addresses.internal):
            await self._write_secrets(control_plane, provision=provision, inside=inside)
            await ensure_default_registration(self._context, control_plane, chosen=chosen)
            if taken is not None:
                raise taken
            await self._write_status(control_plane, provision=provision, inside=inside)
        again = _VERIFIED_SECONDS if inside.lacking is None else _LACKING_SECONDS
        return Result(min(jittered(again), until_renewal(inside.admin, inside.controllers)))

    async def _ensure_endpoint(self, control_plane: ControlPlane, *, provision: Provision) -> ConditionError | None:
        """Have the endpoint of a control plane that kplane runs be there; return why it cannot.

        It keeps nothing from being published or renewed where users rely on it. Raises ConditionError where nobody does
        yet.
        """
        if provision.authorities is None:
            return None
        try:
            await ensure_endpoint(self._context, control_plane, addresses=provision.addresses)
        except ConditionError as taken:
            if control_plane.status.endpoint is None:
                raise
            return taken
        return None

    def _note_replacement(self, uid: str, *, settled: bool) -> None:
        """Have a control plane looked at anew when its API server has been replaced."""
        if not settled:
            self._unsettled.add(uid)
        elif uid in self._unsettled:
            self.forget(uid)

    async def _inside(self, control_plane: ControlPlane, *, provision: Provision, auth: AuthSpec) -> _Inside:
        by_certificate = auth.model is AuthModel.X509
        lifetime = auth.lifetime_asked
        admin = reusable(
            self._published(control_plane, kubeconfig_secret_name), by_certificate=by_certificate, lifetime=lifetime
        )
        authorities = provision.authorities if provision.settled else None
        # Else an API server that still has the keys of before could issue the next one as well.
        if admin is not None and authorities is not None and not issued_under(admin, authorities=authorities):
            admin = None
        controllers = (
            of_certificate(provision.controllers)
            if provision.controllers is not None
            else reusable(
                self._published(control_plane, controllers_secret_name), by_certificate=False, lifetime=lifetime
            )
        )
        if self._is_another_server(control_plane, provision):
            admin, controllers = None, controllers if provision.controllers is not None else None
        version = control_plane.status.version
        uid, fingerprint = control_plane.metadata.uid or "", _fingerprint(provision, auth)
        ready = is_true(control_plane.status.conditions, "Ready")
        if ready and admin and controllers and version and self._is_verified(uid, fingerprint):
            return _Inside(admin, controllers, version)
        try:
            inside = await self._set_up(control_plane, provision, auth=auth, admin=admin, controllers=controllers)
        except ProviderError as error:
            self.forget(uid)
            raise tenant_error("setting up the control plane", error) from error
        except BootstrapFailed as error:
            self.forget(uid)
            reason = Reason.ROLE_NOT_FOUND if isinstance(error, RoleMissing) else Reason.BOOTSTRAPPING
            raise ConditionError(reason, str(error)) from error
        if inside.lacking is None:
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
        certificate, lifetime = provision.controllers, auth.lifetime_asked
        lacking = None
        async with self._client(provision.administrator) as client:
            try:
                await bootstrap(
                    client,
                    admin=user if by_certificate else ADMIN_ACCOUNT,
                    admin_role=auth.default_role,
                    controllers=Subject("User", user_of(certificate.certificate))
                    if certificate
                    else CONTROLLERS_ACCOUNT,
                )
            except RoleMissing as error:
                if control_plane.status.endpoint is None:
                    raise
                lacking = error
            if admin is None or await self._version(provision, admin) is None:
                if by_certificate and provision.authorities is not None:
                    admin = issue_certificate(provision.authorities.client, user=user.name, lifetime=lifetime)
                else:
                    admin = await issue_token(client, service_account=ADMIN_ACCOUNT.name, lifetime=lifetime)
            if controllers is None or await self._version(provision, controllers) is None:
                controllers = await issue_token(client, service_account=CONTROLLERS_ACCOUNT.name, lifetime=lifetime)
        version = await self._version(provision, admin)
        if version is None:
            raise ConditionError(
                Reason.CREDENTIALS_REJECTED, "the control plane does not accept the credentials that it just issued"
            )
        return _Inside(admin, controllers, version, lacking)

    async def _write_secrets(self, control_plane: ControlPlane, *, provision: Provision, inside: _Inside) -> None:
        ca = provision.administrator.ca_data
        trust = {CA_KEY: ca} if ca is not None else {}

        def kubeconfig(server: str, identity: Identity, user: str) -> bytes:
            return render_kubeconfig(server=server, ca=ca, user=user, token=identity.token, client=identity.client)

        addresses = provision.addresses
        await write_secret(
            self._context,
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
            self._context,
            control_plane,
            name=controllers_secret_name(control_plane.name),
            data={KUBECONFIG_KEY: kubeconfig(addresses.internal, inside.controllers, "controllers"), **trust, **keys},
            annotations=inside.controllers.annotations(),
        )

    async def _write_status(self, control_plane: ControlPlane, *, provision: Provision, inside: _Inside) -> None:
        namespace = management_namespace(control_plane.name)
        conditions = with_condition(
            control_plane.status.conditions,
            of=control_plane,
            status="True" if inside.lacking is None else "False",
            reason=Reason.RECONCILED if inside.lacking is None else Reason.ROLE_NOT_FOUND,
            message="the control plane is ready" if inside.lacking is None else str(inside.lacking),
        )
        # Of two that answer, neither is the version: the one from before stands until only the next one is left.
        version = (None if provision.settled else control_plane.status.version) or inside.version
        former = control_plane.status.version
        if former is not None and version != former:
            self._context.events.record(
                control_plane, reason="VersionChanged", message=f"the API server is {version}, and was {former} before"
            )
        conditions = with_up_to_date(conditions, of=control_plane, provision=provision, version=version)
        missing = self.not_acted_on(control_plane)
        status = control_plane.status.model_copy(
            update={
                "phase": ControlPlanePhase.READY if inside.lacking is None else ControlPlanePhase.FAILED,
                "endpoint": provision.addresses.internal,
                "endpoints": provision.addresses.published(),
                "kubeconfig_secret_ref": SecretReference(
                    name=kubeconfig_secret_name(control_plane.name), namespace=namespace
                ),
                "controllers_secret_ref": SecretReference(
                    name=controllers_secret_name(control_plane.name), namespace=namespace
                ),
                "version": version,
                "credentials_expire_at": inside.admin.expires_at,
                "rotation": rotation_status(provision.authorities),
                "observed_generation": control_plane.metadata.generation,
                "conditions": with_supported(conditions, of=control_plane, missing=missing),
            }
        )
        await self._context.status.write(self._context.stores.control_planes, control_plane, status=status)
        if control_plane.status.endpoint is None:
            self._context.metrics.published(control_plane)

    async def _version(self, provision: Provision, identity: Identity) -> str | None:
        """Ask for the version as this identity; None where the control plane does not let it in."""
        try:
            async with self._client(identity.config(provision.administrator)) as client:
                answer = await client.request("GET", "/version")
        except Unauthorized:
            return None
        return reported_version(answer)

    def _client(self, config: ClusterConfig) -> Client:
        return tenant_client(config, timeout_seconds=_CALL_SECONDS, connections=self._context.connections)

    def _published(self, control_plane: ControlPlane, name: Any) -> dict[str, Any] | None:
        key = management_namespace(control_plane.name), name(control_plane.name)
        return self._context.stores.secrets.get(key)

    def _is_another_server(self, control_plane: ControlPlane, provision: Provision) -> bool:
        """Tell whether what is published may be of another API server: what one issued is shown to no other one."""
        if control_plane.status.endpoint in (None, provision.addresses.internal):
            return False
        secret = self._published(control_plane, kubeconfig_secret_name)
        try:
            known = ClusterConfig.from_kubeconfig(data_of(secret)[KUBECONFIG_KEY]) if secret is not None else None
        except (KeyError, KubeconfigError):
            known = None
        now = provision.administrator
        # One that only changed its address has its CA still.
        return known is None or (known.server != now.server and known.ca_data != now.ca_data)

    def _is_verified(self, uid: str, fingerprint: str) -> bool:
        known, until = self._verified.get(uid, ("", 0.0))
        return known == fingerprint and time.monotonic() < until


def _fingerprint(provision: Provision, auth: AuthSpec) -> str:
    parts = (
        provision.administrator.server.encode(),
        provision.administrator.ca_data or b"",
        provision.administrator.token.encode() if provision.administrator.token is not None else b"",
        auth.model.encode(),
        auth.default_role.encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
