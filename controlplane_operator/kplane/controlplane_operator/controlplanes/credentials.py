"""Set-up of the inside of a control plane, and issue of the credentials that are published for it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from kplane.api import AuthModel, AuthSpec, ControlPlane, is_true
from kplane.api.names import (
    WAKE_REQUESTED_ANNOTATION,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes, ProbedCredentials
from kplane.controlplane_operator.errors import BootstrapFailed, RoleMissing
from kplane.controlplane_operator.hibernation.host_name_use import is_counted
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.tenant.admission import lease_guards, tenant_failure
from kplane.controlplane_operator.tenant.bootstrap import (
    ADMIN_ACCOUNT,
    CONTROLLERS_ACCOUNT,
    TENANT_NAMESPACE,
    Subject,
    admin_binding,
    administrator,
    bootstrap,
    controllers_binding,
)
from kplane.controlplane_operator.tenant.client import reported_version, tenant_client
from kplane.controlplane_operator.tenant.flow_schemas import apply_flow_schemas
from kplane.controlplane_operator.tenant.identity import read_cluster_uid
from kplane.controlplane_operator.tenant.tokens import issue_token
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.controlplane_operator.watch.cache import Key
from kplane.controlplane_operator.watch.conditions import refused_since
from kplane.pki.issuing import (
    Identity,
    expires_at,
    issue_certificate,
    issued_under,
    of_certificate,
    reusable,
    sign_token,
    until_renewal,
)
from kplane.pki.kubeconfig import config_of
from kplane.pki.primitives import user_of
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError
from kplane.provider.client.admission import Guard
from kplane.provider.client.resources import SERVICE_ACCOUNTS
from kplane.provider.errors import Unauthorized

__all__ = ["CredentialIssuer", "Credentials", "Identified"]

_INCOMPLETE_SECONDS: Final = 15.0
"""Interval of checks for a missing role that a user may create, or for a webhook of the tenant that may answer
again."""
_SETTING_UP: Final = "setting up the control plane"
_VERIFIED_SECONDS: Final = 300.0
"""Time for which the operator relies on a check of the inside of a control plane."""


Identified = Callable[[str], Awaitable[None]]
"""Callback with the uid of an adopted cluster, before any write there. Raises ConditionError if writes are
forbidden."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The published identities of a control plane, and the version that its API server reports."""

    admin: Identity
    controllers: Identity
    version: str
    incomplete: ConditionError | None = None
    """Reason why the inside of the control plane is not set up completely. The credentials are still renewed."""

    cluster_uid: str | None = None
    """Identity of the cluster; None if it was not read this time."""

    lease_guards: tuple[Guard, ...] | None = None
    """Webhooks of the tenant that guard the Leases of its controllers; None if they were not read this time."""

    asleep: bool = False
    """Whether the control plane sleeps. Without an API server, its inside cannot change."""

    def due_in_seconds(self) -> float:
        """Return after how many seconds to check again: for renewals, and for repairs inside."""
        renewal = until_renewal(self.admin, self.controllers)
        if self.asleep:
            return renewal
        return min(jittered(_VERIFIED_SECONDS if self.incomplete is None else _INCOMPLETE_SECONDS), renewal)


class CredentialIssuer:
    """Reuses published credentials while they are valid, and issues new credentials otherwise."""

    def __init__(self, context: OperatorContext, *, probes: CredentialProbes) -> None:
        self._context = context
        self._probes = probes
        self._verified: dict[str, tuple[str, float, frozenset[str]]] = {}
        """By uid: fingerprint of the verified set-up, monotonic time until which it counts, and refusals reported by
        mcm before."""
        self._unsettled: set[str] = set()

    def forget(self, uid: str) -> None:
        """Discard the verification of the control plane with this uid, so that the next call verifies its inside."""
        self._verified.pop(uid, None)
        self._unsettled.discard(uid)

    async def ensure(
        self, control_plane: ControlPlane, *, provision: Provision, auth: AuthSpec, identified: Identified
    ) -> Credentials:
        """Return credentials that the control plane accepts.

        `identified` is called for an adopted cluster, before each write there. Raises ConditionError if the inside
        cannot be set up.
        """
        if provision.asleep_as is not None:
            return await self._issue_asleep(control_plane, provision, auth=auth, version=provision.asleep_as)
        uid, fingerprint = control_plane.metadata.uid or "", _fingerprint(provision, auth)
        self._note_replacement(uid, settled=provision.settled)
        admin, controllers = self._reusable(control_plane, provision=provision, auth=auth)
        version, refusals = control_plane.status.version, self._refusals(uid)
        ready = is_true(control_plane.status.conditions, "Ready")
        refused = self._probes.refusal(uid) is not None
        verified = ready and not refused and self._is_verified(uid, fingerprint, refusals)
        if verified and admin and controllers and version:
            # A probe may be 30 s old. A changed spec may request the plan of a move, which names present webhooks.
            changed = control_plane.status.observed_generation != control_plane.metadata.generation
            guards = await self._lease_guards(provision) if changed else self._probes.lease_guards(uid)
            issued = Credentials(admin, controllers, version, lease_guards=guards)
            self._follow(control_plane, provision, issued, auth=auth)
            return issued
        try:
            issued = await self._set_up(
                control_plane, provision, auth=auth, admin=admin, controllers=controllers, identified=identified
            )
            probed = self._probed(control_plane, provision, issued, auth=auth)
            if refused and issued.incomplete is None:
                issued = await self._confirm_repair(issued, probed)
        except ProviderError as error:
            self.forget(uid)
            renewed = _is_renewed_without_writes(provision, auth)
            failure = await self._explain(error, provision)
            raise _naming_end(failure, self._ends(control_plane), renewed=renewed) from error
        except BootstrapFailed as error:
            self.forget(uid)
            reason = Reason.ROLE_NOT_FOUND if isinstance(error, RoleMissing) else Reason.BOOTSTRAP_FAILED
            raise ConditionError(reason, str(error)) from error
        if issued.incomplete is None:
            self._verified[uid] = fingerprint, time.monotonic() + jittered(_VERIFIED_SECONDS) * 0.75, refusals
            self._follow(control_plane, provision, issued, auth=auth)
        return issued

    def _follow(
        self, control_plane: ControlPlane, provision: Provision, issued: Credentials, *, auth: AuthSpec
    ) -> None:
        """Have the credentials probed from now on, and the webhooks on Leases compared with those just read."""
        probed = self._probed(control_plane, provision, issued, auth=auth)
        self._probes.follow(_key(control_plane), probed, guards=issued.lease_guards)

    async def _lease_guards(self, provision: Provision) -> tuple[Guard, ...] | None:
        """Return the webhooks on Leases as `lease_guards` does."""
        try:
            async with self._client(provision.administrator) as client:
                return await lease_guards(client)
        except ProviderError:  # these credentials are not valid for a client
            return None

    async def _explain(self, error: ProviderError, provision: Provision) -> ConditionError:
        """Return the reason why the inside cannot be set up; names the webhook of the tenant that caused it, if any."""
        try:
            async with self._client(provision.administrator) as client:
                return await tenant_failure(client, _SETTING_UP, error)
        except ProviderError:  # these credentials are not valid for a client
            return tenant_error(_SETTING_UP, error)

    def _probed(
        self, control_plane: ControlPlane, provision: Provision, issued: Credentials, *, auth: AuthSpec
    ) -> ProbedCredentials:
        admin, controllers = _subjects(control_plane, provision, auth=auth)
        return ProbedCredentials(
            control_plane.metadata.uid or "",
            administrator=provision.administrator,
            identities=(
                (issued.admin, admin_binding(admin, role=auth.default_role)),
                (issued.controllers, controllers_binding(controllers)),
            ),
        )

    async def _confirm_repair(self, made: Credentials, probed: ProbedCredentials) -> Credentials:
        """Return the credentials, marked as incomplete if the API server refuses them after the repair."""
        refusal = await probed.refusal_after_repair(self._context.connections)
        if refusal is None:
            return made
        remedy = "find out what changes it inside the control plane; the operator retries"
        message = f"failed to repair the published credentials: {refusal}; {remedy}"
        return replace(made, incomplete=ConditionError(Reason.CREDENTIALS_REJECTED, message))

    async def _issue_asleep(
        self, control_plane: ControlPlane, provision: Provision, *, auth: AuthSpec, version: str
    ) -> Credentials:
        """Renew credentials with keys alone, without an API server.

        Set-up and probes follow when the control plane wakes. Raises ConditionError (BootstrapFailed) if the keys do
        not suffice, because the uid of a ServiceAccount is unknown.
        """
        self.forget(control_plane.metadata.uid or "")
        self._probes.stop(_key(control_plane))
        admin, controllers = self._reusable(control_plane, provision=provision, auth=auth)
        if admin is None and auth.model is AuthModel.X509:
            admin = self._certificate(control_plane, provision, lifetime=auth.lifetime_asked)
        if admin is None:
            admin = await self._signed(provision, account=ADMIN_ACCOUNT.name, lifetime=auth.lifetime_asked)
        if controllers is None:
            controllers = await self._signed(provision, account=CONTROLLERS_ACCOUNT.name, lifetime=auth.lifetime_asked)
        if admin is None or controllers is None:
            raise ConditionError(
                Reason.BOOTSTRAP_FAILED,
                "the control plane sleeps, and the operator cannot renew its credentials: etcd does not say for whom;"
                f" set annotation {WAKE_REQUESTED_ANNOTATION} to the present time to wake it",
            )
        return Credentials(admin, controllers, version, asleep=True)

    def _note_replacement(self, uid: str, *, settled: bool) -> None:
        """Discard the verification once an API server has been replaced."""
        if not settled:
            self._unsettled.add(uid)
        elif uid in self._unsettled:
            self.forget(uid)

    def _reusable(
        self, control_plane: ControlPlane, *, provision: Provision, auth: AuthSpec
    ) -> tuple[Identity | None, Identity | None]:
        """Return the published identities of administrator and controllers that are still valid, else None."""
        by_certificate, lifetime = auth.model is AuthModel.X509, auth.lifetime_asked
        moved = self._is_another_server(control_plane, provision)
        admin = controllers = None
        if not moved:
            published = self._published(control_plane, kubeconfig_secret_name)
            admin = reusable(published, by_certificate=by_certificate, lifetime=lifetime)
        authorities = provision.authorities if provision.settled else None
        # While the API server still has the old keys, the next token from it would be signed by them too.
        if admin is not None and authorities is not None and not issued_under(admin, authorities=authorities):
            admin = None
        if provision.controllers is not None:
            controllers = of_certificate(provision.controllers)
        elif not moved:
            published = self._published(control_plane, controllers_secret_name)
            controllers = reusable(published, by_certificate=False, lifetime=lifetime)
        return admin, controllers

    async def _set_up(
        self,
        control_plane: ControlPlane,
        provision: Provision,
        *,
        auth: AuthSpec,
        admin: Identity | None,
        controllers: Identity | None,
        identified: Identified,
    ) -> Credentials:
        by_certificate, lifetime = auth.model is AuthModel.X509, auth.lifetime_asked
        user, bound = _subjects(control_plane, provision, auth=auth)
        guards = None
        async with self._client(provision.administrator) as client:
            cluster_uid = await _identify(client, control_plane, provision=provision)
            if cluster_uid is not None and provision.authorities is None:
                await identified(cluster_uid)
            incomplete = await self._bootstrap(
                client,
                control_plane,
                admin=user,
                admin_role=auth.default_role,
                controllers=bound,
                has_credentials=admin is not None and controllers is not None,
            )
            if control_plane.status.endpoint is not None:
                guards = await lease_guards(client)
            if admin is None or await self._version(provision, admin) is None:
                admin = self._certificate(control_plane, provision, lifetime=lifetime) if by_certificate else None
                if admin is None:
                    admin = await self._token(client, provision, account=ADMIN_ACCOUNT.name, lifetime=lifetime)
            if controllers is None or await self._version(provision, controllers) is None:
                name = CONTROLLERS_ACCOUNT.name
                controllers = await self._token(client, provision, account=name, lifetime=lifetime)
        version = await self._version(provision, admin)
        if version is None:
            raise ConditionError(
                Reason.CREDENTIALS_REJECTED, "the control plane rejects the credentials that it has just issued"
            )
        if incomplete is not None:
            incomplete = _naming_end(incomplete, admin.expires_at, renewed=_is_renewed_without_writes(provision, auth))
        return Credentials(admin, controllers, version, incomplete, cluster_uid, lease_guards=guards)

    async def _bootstrap(
        self,
        client: Client,
        control_plane: ControlPlane,
        *,
        admin: Subject,
        admin_role: str,
        controllers: Subject,
        has_credentials: bool,
    ) -> ConditionError | None:
        """Write the identities into the control plane.

        Returns a failure that is acceptable for a while; None if all is written.
        Before the first publication, raises the errors of `bootstrap`. Later, raises a failure that no webhook
        explains, provided that the published credentials are valid (`has_credentials`).
        """
        published = control_plane.status.endpoint is not None
        try:
            await bootstrap(
                client,
                admin=admin,
                admin_role=admin_role,
                controllers=controllers,
                owner=control_plane.metadata.uid,
                published=published,
            )
            control_plane_class = class_in_force(control_plane, classes=self._context.stores.classes).chosen
            if is_counted(control_plane, chosen=control_plane_class, gateway=self._context.gateway):
                await apply_flow_schemas(client, admin=admin, controllers=controllers)
        except RoleMissing as error:
            if not published:
                raise
            return ConditionError(Reason.ROLE_NOT_FOUND, str(error))
        except ProviderError as error:
            if not published:
                raise
            # A webhook of the tenant may refuse or delay these writes, but cannot block tokens that kplane signs
            # itself. So a control plane with such a webhook still wakes: its owner needs the API server to delete the
            # webhook.
            failure = await tenant_failure(client, _SETTING_UP, error)
            if has_credentials and not failure.guards:
                raise
            return failure
        return None

    async def _token(self, client: Client, provision: Provision, *, account: str, lifetime: timedelta) -> Identity:
        """Return a token signed with the control plane's key, or by its API server if kplane has no key or no uid."""
        signed = await self._signed(provision, account=account, lifetime=lifetime, client=client)
        return signed or await issue_token(client, service_account=account, lifetime=lifetime)

    def _certificate(
        self, control_plane: ControlPlane, provision: Provision, *, lifetime: timedelta
    ) -> Identity | None:
        """Issue a certificate for the administrator. Returns None if kplane does not have the CA."""
        if provision.authorities is None:
            return None
        user = administrator(control_plane.metadata.uid or "", by_certificate=True)
        return issue_certificate(provision.authorities.client, user=user.name, lifetime=lifetime)

    async def _signed(
        self, provision: Provision, *, account: str, lifetime: timedelta, client: Client | None = None
    ) -> Identity | None:
        """Sign a token with the control plane's key. Returns None if kplane has no key or no uid for it.

        If the uid cannot be read from etcd, because it is encrypted there, `client` reads it. Webhooks do not apply to
        reads.
        """
        if provision.account_uid is None or provision.authorities is None:
            return None
        uid = await provision.account_uid(account)
        if uid is None and client is not None:
            uid = await _read_account_uid(client, account)
        if uid is None:
            return None
        return sign_token(
            provision.authorities.service_account_key,
            namespace=TENANT_NAMESPACE,
            service_account=account,
            uid=uid,
            lifetime=lifetime,
        )

    async def _version(self, provision: Provision, identity: Identity) -> str | None:
        """Return the version that the API server reports to this identity; None if the control plane rejects it."""
        try:
            async with self._client(identity.config(provision.administrator)) as client:
                answer = await client.request("GET", "/version")
        except Unauthorized:
            return None
        return reported_version(answer)

    def _ends(self, control_plane: ControlPlane) -> datetime | None:
        """Return the earliest expiry of the published credentials; None if none are published."""
        secrets = [self._published(control_plane, name) for name in (kubeconfig_secret_name, controllers_secret_name)]
        ends = [expires_at(secret) for secret in secrets if secret is not None]
        return min((end for end in ends if end is not None), default=None)

    def _client(self, config: ClusterConfig) -> Client:
        return tenant_client(config, connections=self._context.connections)

    def _published(self, control_plane: ControlPlane, name: Any) -> dict[str, Any] | None:
        key = management_namespace(control_plane.name), name(control_plane.name)
        return self._context.stores.secrets.get(key)

    def _is_another_server(self, control_plane: ControlPlane, provision: Provision) -> bool:
        """Return whether another API server may have issued the published credentials.

        They must not be sent to this server.
        """
        if control_plane.status.endpoint in (None, provision.addresses.internal):
            return False
        published = config_of(self._published(control_plane, kubeconfig_secret_name))
        now = provision.administrator
        # An API server that only changed its address still has its CA.
        return published is None or (published.server != now.server and published.ca_data != now.ca_data)

    def _is_verified(self, uid: str, fingerprint: str, refusals: frozenset[str]) -> bool:
        verified, until, known_refusals = self._verified.get(uid, ("", 0.0, frozenset[str]()))
        return verified == fingerprint and time.monotonic() < until and refusals <= known_refusals

    def _refusals(self, uid: str) -> frozenset[str]:
        """Return a token for each unresolved report of mcm that the control plane refuses its controllers."""
        registrations = self._context.stores.registrations.by("served", uid)
        since = ((obj["metadata"]["uid"], refused_since(obj)) for obj in registrations)
        return frozenset(f"{registration}/{time}" for registration, time in since if time is not None)


def _key(control_plane: ControlPlane) -> Key:
    return "", control_plane.name


def _subjects(control_plane: ControlPlane, provision: Provision, *, auth: AuthSpec) -> tuple[Subject, Subject]:
    """Return the subjects that administrator and controllers are inside the control plane."""
    by_certificate, certificate = auth.model is AuthModel.X509, provision.controllers
    controllers = Subject("User", user_of(certificate.certificate)) if certificate else CONTROLLERS_ACCOUNT
    return administrator(control_plane.metadata.uid or "", by_certificate=by_certificate), controllers


async def _identify(client: Client, control_plane: ControlPlane, *, provision: Provision) -> str | None:
    """Return the identity of the cluster; None if kplane holds the data and has read their identity before.

    Raises BootstrapFailed, and the errors of `client`.
    """
    if provision.authorities is not None:
        status = control_plane.status
        if status.cluster_uid is not None and provision.data_identity in (None, status.data_identity):
            return None
    return await read_cluster_uid(client)


async def _read_account_uid(client: Client, account: str) -> str | None:
    try:
        uid = (await client.get(SERVICE_ACCOUNTS, account, namespace=TENANT_NAMESPACE))["metadata"].get("uid")
    except NotFound:
        return None
    return uid if isinstance(uid, str) else None


def _is_renewed_without_writes(provision: Provision, auth: AuthSpec) -> bool:
    """Return whether kplane renews credentials with keys alone.

    No webhook of the tenant can refuse such a renewal.
    """
    by_keys = provision.account_uid is not None or auth.model is AuthModel.X509
    return provision.authorities is not None and by_keys


def _naming_end(failure: ConditionError, end: datetime | None, *, renewed: bool) -> ConditionError:
    """Return the failure with the expiry of the published credentials in its message, if a webhook causes it.

    `renewed` means that the credentials are renewed although the webhook refuses writes.
    """
    if not failure.guards or end is None:
        return failure
    outlook = (
        "the operator renews them before that" if renewed else "they cannot be renewed, and no client gets in then"
    )
    expiry = f"the published credentials end at {end:%Y-%m-%d %H:%M} UTC: {outlook}"
    return ConditionError(failure.reason, f"{failure.message}; {expiry}", guards=failure.guards)


def _fingerprint(provision: Provision, auth: AuthSpec) -> str:
    administrator = provision.administrator
    parts = (
        administrator.server.encode(),
        administrator.ca_data or b"",
        (administrator.token or "").encode(),
        (administrator.proxy or "").encode(),
        auth.model.encode(),
        auth.default_role.encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
