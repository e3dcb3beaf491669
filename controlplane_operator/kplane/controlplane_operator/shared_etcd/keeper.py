"""Maintains the credentials of a shared etcd beside the operator, in Secrets and in files for etcd's client."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from kplane.controlplane_operator.errors import OperatorError
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.certificates import (
    authority_of,
    create_credentials,
    renew_credentials,
    renew_server,
    server_hosts,
)
from kplane.controlplane_operator.shared_etcd.files import write_credentials
from kplane.controlplane_operator.watch.backoff import jittered, retry_backoff
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.entries import data_of
from kplane.pki.errors import CredentialsInvalid, PkiError
from kplane.pki.primitives import renewal_due
from kplane.provider import Client, Conflict, NotFound, ProviderError
from kplane.provider.client.resources import SECRETS

__all__ = ["CredentialsKeeper", "service_endpoint"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 60.0
"""Interval in seconds in which deleted Secrets are restored, and due certificates are renewed."""

_LABELS: Final = {"app.kubernetes.io/managed-by": "kplane", "app.kubernetes.io/part-of": "kplane"}


def service_endpoint(service: str, *, namespace: str) -> str:
    """Return the URL of the etcd behind a Service."""
    return f"https://{service}.{namespace}.svc:2379"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class CredentialsKeeper:
    """Creates missing credentials and renews due certificates; several operators may do so at the same time.

    Secret `<service>-credentials` has the CA and the client certificate of etcd's user root. Secret `<service>-server`
    has the certificates that members mount. The CA is valid for ten years, and is never replaced.
    """

    def __init__(
        self,
        client: Client,
        *,
        etcd: SharedEtcd,
        service: str,
        namespace: str,
        directory: Path,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Maintain the credentials of `etcd`, whose members run behind `service`.

        `directory` is for files, and must not have other users; `now` is the clock for renewals.
        """
        self._client = client
        self._etcd = etcd
        self._service = service
        self._namespace = namespace
        self._directory = directory
        self._now = now
        self._hosts = server_hosts(service, namespace=namespace)
        self._kept: dict[str, bytes] | None = None
        self._backoff = retry_backoff(first_seconds=0.2)

    async def run(self) -> NoReturn:
        """Maintain the credentials until cancelled. Failures appear in the log and in the errors of the etcd."""
        while True:
            try:
                await self.check()
            except Conflict as error:
                pause = self._backoff.next_delay()
                _log.info("another operator was quicker, looking again in %.1f s: %s", pause, error)
            except (ProviderError, OperatorError, PkiError, OSError) as error:
                pause = self._backoff.next_delay()
                self._etcd.lacks(str(error))
                _log.warning("the shared etcd's credentials cannot be kept, again in %.1f s: %s", pause, error)
            else:
                self._backoff.reset()
                pause = jittered(_PERIOD_SECONDS)
            await asyncio.sleep(pause)

    async def check(self) -> None:
        """Create or update Secrets and files once.

        Raises ProviderError (Conflict if another operator wrote first), OSError, and CredentialsInvalid if the CA is
        damaged or lost.
        """
        # Read the Secret of the server first, because it is created last. If it exists without the other Secret, that
        # Secret was lost.
        server = await self._find(self._server_name)
        existing = await self._find(self._credentials_name)
        if existing is None:
            credentials = self._kept or await self._create(signed=server is not None)
        else:
            credentials = self._renewed(data_of(existing))
        await self._have(self._credentials_name, known=existing, data=credentials)
        authority = authority_of(credentials)
        members = renew_server(
            data_of(server) if server is not None else {}, authority=authority, hosts=self._hosts, now=self._now()
        )
        await self._have(self._server_name, known=server, data=members)
        self._etcd.use(write_credentials(self._directory, credentials), authority=authority)
        self._kept = credentials

    def _renewed(self, known: Mapping[str, bytes]) -> dict[str, bytes]:
        secret = f"Secret {self._namespace}/{self._credentials_name}"
        try:
            credentials = renew_credentials(known, now=self._now())
        except CredentialsInvalid as error:
            raise CredentialsInvalid(f"{secret} is damaged: {error}; restore it") from None
        if self._kept is None and renewal_due(credentials["ca.crt"], now=self._now()):
            _log.warning(
                "the authority in %s is not valid yet, or two thirds of its life have gone: plan its replacement",
                secret,
            )
        if self._kept is not None and credentials["ca.crt"] != self._kept["ca.crt"]:
            _log.warning("%s has another authority now: restart the members of the etcd, so that they trust it", secret)
        return credentials

    async def _create(self, *, signed: bool) -> dict[str, bytes]:
        evidence = (
            f"Secret {self._server_name}, which it signed, is still there" if signed else await self._data_evidence()
        )
        if evidence is not None:
            raise CredentialsInvalid(
                f"Secret {self._namespace}/{self._credentials_name} with the authority of the shared etcd is gone, and"
                f" {evidence}: restore it from your backup, or create it with a new authority (entries ca.crt and"
                " ca.key, an elliptic curve key), and restart the etcd's pods"
            )
        return create_credentials(f"kplane-{self._service}")

    async def _data_evidence(self) -> str | None:
        """Return a clause that names a published control plane with data in this etcd; None if there is none."""
        for obj in (await self._client.list(CONTROL_PLANES)).items:
            spec, status = obj.get("spec") or {}, obj.get("status") or {}
            home = status.get("home") or {"mode": spec.get("mode", "Virtual")}
            here = home.get("mode") == "Virtual" and home.get("dataStore") is None
            if here and "endpointRef" not in spec and status.get("endpoint"):
                return f"control plane {obj['metadata']['name']} has data there"
        return None

    async def _find(self, name: str) -> Object | None:
        try:
            return await self._client.get(SECRETS, name, namespace=self._namespace)
        except NotFound:
            return None

    async def _have(self, name: str, *, known: Object | None, data: Mapping[str, bytes]) -> None:
        """Create or update a Secret. Raises Conflict if another client has written it since it was read."""
        encoded = {entry: base64.b64encode(content).decode() for entry, content in data.items()}
        if known is None:
            metadata = {"name": name, "namespace": self._namespace, "labels": dict(_LABELS)}
            await self._client.create(SECRETS, {"metadata": metadata, "type": "Opaque", "data": encoded})
            _log.info("created Secret %s/%s", self._namespace, name)
            return
        labels = known["metadata"].get("labels") or {}
        present = known.get("data") or {}
        if labels | _LABELS == labels and present | encoded == present:
            return
        metadata = {"resourceVersion": known["metadata"]["resourceVersion"], "labels": _LABELS}
        await self._client.patch(SECRETS, name, {"metadata": metadata, "data": encoded}, namespace=self._namespace)
        _log.info("renewed Secret %s/%s", self._namespace, name)

    @property
    def _credentials_name(self) -> str:
        return f"{self._service}-credentials"

    @property
    def _server_name(self) -> str:
        return f"{self._service}-server"
