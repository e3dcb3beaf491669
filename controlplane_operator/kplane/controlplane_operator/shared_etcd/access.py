"""The shared etcd as control planes of mode Virtual use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.pki.primitives import KeyPair
from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace

__all__ = ["SharedEtcd"]


class SharedEtcd:
    """The keys in the shared etcd, and the authority that signs its clients.

    Both may come later than the operator starts; until then each use says what is lacking. Take them anew for each act:
    credentials are renewed.
    """

    def __init__(self, endpoint: str, *, programs: Sequence[Path], namespace: str | None = None) -> None:
        """Take the URL of the etcd, and the directories to look for etcdctl in. Raises FileNotFoundError without it.

        `namespace` is where its pods are, if it is in this cluster.
        """
        self.endpoint: Final = endpoint
        self.namespace: Final = namespace
        self._etcdctl = _find("etcdctl", programs)
        self._access: tuple[Keyspace, KeyPair] | None = None
        self._lacking = "they were not looked for yet"

    @classmethod
    def from_directory(cls, directory: Path, *, endpoint: str, programs: Sequence[Path]) -> Self:
        """Use the files ca.crt, ca.key, client.crt and client.key, which others keep. Raises OSError without them."""
        etcd = cls(endpoint, programs=programs)
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
        """Say what is wrong, for /readyz."""
        if self._access is None:
            return self._told()
        if await self.keyspace.healthy():
            return None
        return f"the shared etcd at {self.endpoint} is not healthy"

    def use(self, credentials: Path, *, authority: KeyPair) -> None:
        """Go on with the ca.crt, client.crt and client.key in a directory."""
        keyspace = Keyspace(etcdctl=self._etcdctl, endpoints=(self.endpoint,), credentials=credentials)
        self._access = keyspace, authority

    def lacks(self, why: str) -> None:
        """Note why there are no credentials; those that are in use stay in use."""
        self._lacking = why

    def _required(self) -> tuple[Keyspace, KeyPair]:
        if self._access is None:
            raise KeyspaceError(self._told())
        return self._access

    def _told(self) -> str:
        return f"the credentials of the shared etcd at {self.endpoint} are not there yet: {self._lacking}"


def _find(program: str, directories: Sequence[Path]) -> Path:
    for directory in directories:
        if (directory / program).is_file():
            return directory / program
    raise FileNotFoundError(f"{program} is in none of --programs-dir {', '.join(map(str, directories))}")
