"""The shared etcd as control planes of mode Virtual use it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace
from kplane.controlplane_operator.shared_etcd.versions import version_problem
from kplane.pki.primitives import KeyPair

__all__ = ["SharedEtcd"]


class SharedEtcd:
    """The keys in the shared etcd, and the authority that signs its clients.

    Both may come later than the operator starts; until then each use says what is lacking.
    """

    def __init__(self, endpoint: str, *, namespace: str | None = None) -> None:
        """Take the URL of the etcd. `namespace` is where its pods are, if it is in this cluster."""
        self.endpoint: Final = endpoint
        self.namespace: Final = namespace
        self._access: tuple[Keyspace, KeyPair] | None = None
        self._lacking = "they were not looked for yet"

    @classmethod
    def from_directory(cls, directory: Path, *, endpoint: str) -> Self:
        """Use the files ca.crt, ca.key, client.crt and client.key, which others keep. Raises OSError without them."""
        etcd = cls(endpoint)
        etcd.use(directory, authority=KeyPair((directory / "ca.crt").read_bytes(), (directory / "ca.key").read_bytes()))
        return etcd

    @property
    def keyspace(self) -> Keyspace:
        """The etcd as its administrator. Raises KeyspaceError while the credentials are not there."""
        return self._required()[0]

    @property
    def authority(self) -> KeyPair:
        """Signs the etcd's clients. Raises KeyspaceError while the credentials are not there."""
        return self._required()[1]

    async def problem(self) -> str | None:
        """Ask the etcd, and say what is wrong."""
        if self._access is None:
            return self._told()
        problem = await self.keyspace.problem()
        if problem is not None:
            return f"the shared etcd at {self.endpoint} is not healthy: {problem}"
        return await self.refusal()

    async def refusal(self) -> str | None:
        """Say why no tenant is granted anything in this etcd; None if its version is good. Raises KeyspaceError."""
        problem = version_problem(await self.keyspace.version())
        return None if problem is None else f"the shared etcd at {self.endpoint} is refused: {problem}"

    def use(self, credentials: Path, *, authority: KeyPair) -> None:
        """Go on with the ca.crt, client.crt and client.key in a directory."""
        if self._access is None:
            keyspace = Keyspace(self.endpoint, credentials=credentials)
        else:
            keyspace = self._access[0]
            keyspace.use(credentials)
        self._access = keyspace, authority

    def lacks(self, why: str) -> None:
        """Note why there are no credentials; those that are in use stay in use."""
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
