"""Reading of the data and keys of a control plane for a snapshot."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kplane.api import ControlPlane, ControlPlaneMode
from kplane.components.etcd import ETCD_PORTS, client_url
from kplane.components.names import MOST_ETCD_MEMBERS, etcd_name
from kplane.controlplane_operator.backends.served_data import served_data
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.data import Client, Credentials, DataLost, HeldCredentials, check_served, owner_of
from kplane.workloads import Phase, Runtime

__all__ = ["DEDICATED_PREFIX", "Source", "Sources"]

DEDICATED_PREFIX: Final = "/registry/"
"""Key prefix in an etcd that belongs to a single control plane."""
_CALL_SECONDS: Final = 30.0
_PAGE_AT_MOST: Final = 8 << 20
"""Maximum size of an answer, in bytes. Tenants choose the size of their values, and must not fill our memory."""


@dataclass(frozen=True, slots=True)
class Source:
    """Etcd of a control plane, and the archive header, which contains the keys of the control plane."""

    client: Client
    prefix: str
    header: dict[str, Any]


class Sources:
    """Opens the etcd of each control plane that kplane runs. The API server does not have to run."""

    def __init__(
        self, context: OperatorContext, *, runtime: Runtime, data_stores: Mapping[str | None, SharedEtcd]
    ) -> None:
        """`data_stores` has the shared etcds by name; the name of the default etcd is None."""
        self._keys = TenantKeys(context)
        self._runtime = runtime
        self._data_stores = data_stores

    @contextlib.asynccontextmanager
    async def open(self, control_plane: ControlPlane) -> AsyncIterator[Source]:
        """Connect to the etcd, and read the keys.

        Raises BackupFailed, also if the etcd lost the data, and errors of the operator, of etcd and of the cluster. The
        keys are read before and after the data and compared, because the keys in the header must decrypt the data.
        """
        keys = await self._keys.exported(control_plane)
        if not keys:
            raise BackupFailed("the Secret with the keys of the control plane is gone; restore it")
        virtual = control_plane.home.mode is ControlPlaneMode.VIRTUAL
        opened = self._virtual(control_plane) if virtual else self._dedicated(control_plane)
        async with opened as (client, prefix):
            # Data that were lost must not replace earlier snapshots, and no clone must begin with them.
            if (served := served_data(control_plane)) is not None:
                try:
                    await check_served(client, prefix, served=served)
                except DataLost as error:
                    raise BackupFailed(f"the etcd does not have its data: {error}; see condition Ready") from error
            yield Source(client, prefix, _header(control_plane, keys=keys))
        if await self._keys.exported(control_plane) != keys:
            raise BackupFailed("the keys of the control plane changed while its data were read")

    @contextlib.asynccontextmanager
    async def _virtual(self, control_plane: ControlPlane) -> AsyncIterator[tuple[Client, str]]:
        shared = self._data_stores.get(control_plane.home.data_store)
        if shared is None or control_plane.status.cluster_path is None:
            raise BackupFailed("the operator has no shared etcd with data of the control plane")
        prefix = key_prefix(control_plane.status.cluster_path)
        credentials = Credentials.in_directory(shared.keyspace.credentials)
        async with _client(shared.endpoint, credentials) as client:
            owner = await owner_of(client, prefix)
            if owner is None or owner.uid != control_plane.metadata.uid:
                holder = owner.label if owner is not None else "no control plane that is known"
                raise BackupFailed(f"the data below {prefix} belong to {holder}")
            yield client, prefix

    @contextlib.asynccontextmanager
    async def _dedicated(self, control_plane: ControlPlane) -> AsyncIterator[tuple[Client, str]]:
        members = [
            etcd_name(control_plane.name, number, slot=control_plane.home.slot) for number in range(MOST_ETCD_MEMBERS)
        ]
        ready = [member for member in members if self._runtime.state(member).phase is Phase.READY]
        authorities, certificates = await self._keys.present(control_plane), await self._keys.issued(control_plane)
        if not ready or authorities is None or certificates is None:
            raise BackupFailed(f"no member of etcd is ready: {self._runtime.state(members[0]).message or members[0]}")
        address = await self._runtime.reserve(ready[0], ports=ETCD_PORTS)
        pair = certificates.etcd_client
        held_credentials = HeldCredentials(ca=authorities.etcd_trust, certificate=pair.certificate, key=pair.key)
        async with _client(client_url(address), held_credentials) as client:
            yield client, DEDICATED_PREFIX


def _client(endpoint: str, credentials: Credentials | HeldCredentials) -> Client:
    return Client(endpoint, credentials=credentials, timeout_seconds=_CALL_SECONDS, receive_at_most=_PAGE_AT_MOST)


def _header(control_plane: ControlPlane, *, keys: dict[str, bytes]) -> dict[str, Any]:
    status = control_plane.status
    return {
        "controlPlane": control_plane.name,
        "uid": control_plane.metadata.uid,
        "mode": str(control_plane.home.mode),
        "clusterPath": status.cluster_path,
        "serviceCIDR": status.service_cidr,
        "kubernetesVersion": status.version,
        "keys": {name: base64.b64encode(content).decode() for name, content in keys.items()},
    }
