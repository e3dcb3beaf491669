"""Access of the operator to a shared etcd of control planes of mode Virtual."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace
from kplane.controlplane_operator.shared_etcd.versions import version_problem
from kplane.pki.primitives import KeyPair

__all__ = ["SharedEtcd"]


class SharedEtcd:
    """Keys in the shared etcd, and the CA that signs its client certificates.

    Both may arrive after the start of the operator. Until then, each use raises KeyspaceError with the cause.
    """

    def __init__(self, endpoint: str, *, namespace: str | None = None) -> None:
        """Create the access to the etcd at this URL; `namespace` is that of its pods, if they run in this cluster."""
        self.endpoint: Final = endpoint
        self.namespace: Final = namespace
        self._access: tuple[Keyspace, KeyPair] | None = None
        self._lacking = "they were not looked for yet"

    @classmethod
    def from_directory(cls, directory: Path, *, endpoint: str) -> Self:
        """Read ca.crt, ca.key, client.crt and client.key from a directory that another program maintains.

        Raises OSError if one of them is missing.
        """
        etcd = cls(endpoint)
        etcd.use(directory, authority=KeyPair((directory / "ca.crt").read_bytes(), (directory / "ca.key").read_bytes()))
        return etcd

    @property
    def keyspace(self) -> Keyspace:
        """Client of the etcd with the administrator's rights. Raises KeyspaceError until credentials exist."""
        return self._required()[0]

    @property
    def authority(self) -> KeyPair:
        """CA that signs client certificates of the etcd. Raises KeyspaceError until credentials exist."""
        return self._required()[1]

    async def problem(self) -> str | None:
        """Check the etcd, and return its problem; None if there is none. Raises KeyspaceError."""
        if self._access is None:
            return self._told()
        problem = await self.keyspace.problem()
        if problem is not None:
            return f"the shared etcd at {self.endpoint} is not healthy: {problem}"
        return await self.refusal()

    async def refusal(self) -> str | None:
        """Return why this etcd must not have tenants; None if its version is supported. Raises KeyspaceError."""
        problem = version_problem(await self.keyspace.version())
        return None if problem is None else f"the shared etcd at {self.endpoint} is refused: {problem}"

    def use(self, credentials: Path, *, authority: KeyPair) -> None:
        """Use ca.crt, client.crt and client.key of a directory, and this CA, from the next call on."""
        if self._access is None:
            keyspace = Keyspace(self.endpoint, credentials=credentials)
        else:
            keyspace = self._access[0]
            keyspace.use(credentials)
        self._access = keyspace, authority

    def lacks(self, why: str) -> None:
        """Record why credentials are missing. Present credentials stay in use."""
        self._lacking = why

    async def close(self) -> None:
        """Close the connection."""
        if self._access is not None:
            await self._access[0].close()

    def _required(self) -> tuple[Keyspace, KeyPair]:
        if self._access is None:
            raise KeyspaceError(self._told())
        return self._access

    def _told(self) -> str:
        return f"the credentials of the shared etcd at {self.endpoint} are not there yet: {self._lacking}"
