"""Makes templates: a temporary API server writes the keys of a fresh control plane below a prefix, and ends."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from kplane.api import DEFAULT_SERVICE_CIDR, ApiServerSettings, AuthModel, AuthSpec, ControlPlaneClass
from kplane.components.api_server import (
    API_SERVER_PORTS,
    api_server_component,
    bootstrap_arguments,
    server_url,
    serving_hosts,
)
from kplane.components.egress import Egress
from kplane.components.etcd import EtcdAccess
from kplane.components.names import template_name
from kplane.controlplane_operator.backends.class_settings import api_server_settings, scheduling_of
from kplane.controlplane_operator.errors import TemplateFailed
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.access_control import AccessControl
from kplane.controlplane_operator.shared_etcd.keyspace import template_prefix
from kplane.controlplane_operator.tenant.bootstrap import (
    ADMIN_ACCOUNT,
    ADMIN_BINDING,
    REVISION,
    TENANT_NAMESPACE,
    Subject,
    bootstrap,
)
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.data import DataError, Original, Owner
from kplane.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.provider import Client, ClusterConfig, Unreachable
from kplane.workloads import Phase, Runtime, Scheduling

__all__ = ["MADE", "TemplateMaker", "Wanted", "left_out", "maker_user"]

MADE: Final = Owner("made")
"""Owner of complete templates. No user of etcd may write below the prefix of a complete template."""

_PLACEHOLDER: Final = "00000000-0000-4000-8000-000000000000"
"""Placeholder for the uid of the control plane in names of users."""
_ACCOUNT: Final = f"serviceaccounts/{TENANT_NAMESPACE}/{ADMIN_ACCOUNT.name}".encode()
_BINDING: Final = f"clusterrolebindings/{ADMIN_BINDING}".encode()
_RETRY_SECONDS: Final = 0.5
_STILL_SECONDS: Final = 1.0
"""Time without changes after which the API server counts as done with its initial writes."""
_COMPLETE: Final = frozenset(
    {
        b"namespaces/default",
        b"namespaces/kube-node-lease",
        b"namespaces/kube-public",
        b"namespaces/kube-system",
        b"servicecidrs/kubernetes",
        b"services/specs/default/kubernetes",
    }
)
"""Keys that an API server writes some time after it reports that it is ready."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Properties on which the keys of a fresh control plane depend."""

    version: str
    """Version of Kubernetes."""
    asked: str | None
    """Version as the runtime is asked for it; None for the runtime's own version."""
    settings: ApiServerSettings
    service_cidr: str
    scheduling: Scheduling | None = None
    """Scheduling of the pod that makes the template. The template does not depend on it."""

    @classmethod
    def of(
        cls, chosen: ControlPlaneClass | None, *, version: str, asked: str | None, service_cidr: str | None = None
    ) -> Self:
        """Return the properties of new control planes of a class."""
        settings = api_server_settings(chosen)
        return cls(
            version,
            asked,
            # No other setting changes a key. Encryption, for example, only affects later writes.
            ApiServerSettings(extra_args=settings.extra_args),
            service_cidr or settings.service_cidr or DEFAULT_SERVICE_CIDR,
            scheduling_of(chosen),
        )

    @property
    def name(self) -> str:
        """Name of the template, distinct for each version and each other property on which keys depend."""
        arguments = bootstrap_arguments(self.settings, service_cidr=self.service_cidr)
        parts = (REVISION, self.version, *arguments)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return f"{re.sub('[^0-9a-z]+', '-', self.version.lower())[:40].strip('-')}-{digest}".lstrip("-")


def left_out(auth: AuthSpec) -> frozenset[bytes]:
    """Return the keys of a template that a control plane with this access must not have.

    Templates contain the objects of the default access. For any other administrator or role, `bootstrap` creates them.
    """
    by_certificate = auth.model is AuthModel.X509
    keys = {_ACCOUNT} if by_certificate else set()
    if by_certificate or auth.default_role != AuthSpec().default_role:
        keys.add(_BINDING)
    return frozenset(keys)


def maker_user(owner: Owner) -> str:
    """Return the user of etcd that writes the keys of a template, before `MADE` owns it."""
    return f"template-{owner.uid}"


class TemplateMaker:
    """Makes templates, one at a time, and reads them."""

    def __init__(self, *, runtime: Runtime, shared: SharedEtcd, access: AccessControl) -> None:
        self._runtime = runtime
        self._shared = shared
        self._access = access

    async def find(self, wanted: Wanted) -> Original | None:
        """Return the complete template; None if it does not exist. Raises KeyspaceError and TemplateFailed."""
        keyspace, prefix = self._shared.keyspace, template_prefix(wanted.name)
        if await keyspace.owner(prefix) != MADE:
            return None
        template = await keyspace.template(prefix)
        if not template.values.keys() >= _COMPLETE:
            # Another installation on this etcd has just deleted the template.
            return None
        try:
            return Original.of(template, placeholder=_PLACEHOLDER)
        except DataError as error:
            raise TemplateFailed(f"template {wanted.name} cannot be copied: {error}") from error

    async def make(self, wanted: Wanted, *, host: str) -> None:
        """Make a template with an API server beside control plane `host`. An unfinished template is discarded first.

        The API server keeps running after the return, until its component is deleted. Raises OperatorError, PkiError,
        WorkloadsError and ProviderError.
        """
        keyspace, prefix = self._shared.keyspace, template_prefix(wanted.name)
        if await self.find(wanted) is not None:
            return
        await self.discard(wanted.name)
        await self._runtime.delete(template_name(host))
        attempt = Owner(str(uuid.uuid4()), host)
        await keyspace.claim(prefix, owner=attempt, known=False)
        try:
            await self._write(wanted, host=host, attempt=attempt)
        finally:
            # From here on, no user may write to the template.
            await self._access.revoke(maker_user(attempt))
        Original.of(await keyspace.template(prefix), placeholder=_PLACEHOLDER)
        await keyspace.take_over(prefix, former=attempt, owner=MADE)

    async def discard(self, name: str) -> None:
        """Delete the keys of a template, complete or not. Raises KeyspaceError."""
        keyspace, prefix = self._shared.keyspace, template_prefix(name)
        owner = await keyspace.owner(prefix)
        if owner is None:
            return
        if owner != MADE:
            await self._access.revoke(maker_user(owner))
        await keyspace.delete_prefix(prefix, owner=owner)

    async def _write(self, wanted: Wanted, *, host: str, attempt: Owner) -> None:
        name, prefix, user = template_name(host), template_prefix(wanted.name), maker_user(attempt)
        address = await self._runtime.reserve(name, ports=API_SERVER_PORTS)
        # No control plane trusts these authorities, and they are discarded with the API server.
        authorities = TenantAuthorities.create("template")
        certificates = TenantCertificates.renewed(
            None,
            authorities=authorities,
            hosts=serving_hosts(address, service_cidr=wanted.service_cidr),
            etcd_authority=self._shared.authority,
            etcd_user=user,
            controllers_user=f"{CONTROLLERS_USER}:{_PLACEHOLDER}",
            now=datetime.now(UTC),
        )
        etcd = EtcdAccess(
            (self._shared.endpoint,),
            self._shared.authority.certificate,
            certificates.etcd_client,
            namespace=self._shared.namespace,
        )
        await self._access.grant(user, prefix=prefix, owner=attempt)
        await self._runtime.apply(
            api_server_component(
                name,
                address=address,
                authorities=authorities,
                certificates=certificates,
                etcd=etcd,
                etcd_prefix=prefix.rstrip("/"),
                etcd_shared=True,
                version=wanted.asked,
                settings=wanted.settings,
                service_cidr=wanted.service_cidr,
                scheduling=wanted.scheduling,
                egress=Egress(),
            )
        )
        pair = authorities.issue_administrator()
        config = ClusterConfig(
            server=server_url(address),
            ca_data=authorities.serving_trust,
            client_certificate=pair.certificate,
            client_key=pair.key,
        )
        async with tenant_client(config) as client:
            await self._bootstrap(client, name=name)
        await self._complete(prefix)

    async def _bootstrap(self, client: Client, *, name: str) -> None:
        """Create the objects that kplane puts into each control plane. Raises as `_ready` does."""
        while True:
            await self._ready(name)
            try:
                return await bootstrap(
                    client,
                    admin=ADMIN_ACCOUNT,
                    admin_role=AuthSpec().default_role,
                    controllers=Subject("User", f"{CONTROLLERS_USER}:{_PLACEHOLDER}"),
                    owner=_PLACEHOLDER,
                )
            except Unreachable:
                # A Service routes to its pod some time after the pod is ready.
                await asyncio.sleep(_RETRY_SECONDS)

    async def _ready(self, name: str) -> None:
        """Wait until the API server is ready. Raises TemplateFailed if it ends, or its program is unobtainable."""
        changed, seen = asyncio.Event(), False
        unsubscribe = self._runtime.subscribe(lambda other: changed.set() if other == name else None)
        try:
            while (state := self._runtime.state(name)).phase is not Phase.READY:
                gone = state.phase in {Phase.ABSENT, Phase.STOPPING} and seen
                if gone or state.unobtainable or state.phase in {Phase.BACKOFF, Phase.ENDED}:
                    details = f": {state.message}" if state.message else ""
                    raise TemplateFailed(f"its kube-apiserver is {state.phase}{details}")
                seen = seen or state.phase is not Phase.ABSENT
                await changed.wait()
                changed.clear()
        finally:
            unsubscribe()

    async def _complete(self, prefix: str) -> None:
        """Wait until all initial keys exist, and none has changed for a second."""
        previous = None
        while True:
            template = await self._shared.keyspace.template(prefix)
            if template.values == previous and template.values.keys() >= _COMPLETE:
                return
            previous = template.values
            await asyncio.sleep(_STILL_SECONDS)
