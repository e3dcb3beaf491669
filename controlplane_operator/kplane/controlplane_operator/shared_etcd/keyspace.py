"""The shared etcd: a key prefix and a user for each virtual control plane.

The real etcdctl does the work, because etcd's JSON gateway knows no users by certificate
(https://etcd.io/docs/v3.6/op-guide/authentication/rbac/).
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.workloads import ProgramFailed, ProgramTimedOut, run_program

__all__ = ["Keyspace", "key_prefix"]

_PREFIX: Final = re.compile(r"/clusters/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/")
_ROOT: Final = "root"
_TIMEOUT_SECONDS: Final = 10.0
_READWRITE: Final = 2
_NO_USER: Final = "etcdserver: user name not found"
_NO_ROLE: Final = "etcdserver: role name not found"
_USER_EXISTS: Final = "etcdserver: user name already exists"
_ROLE_EXISTS: Final = "etcdserver: role name already exists"


def key_prefix(cluster_path: str) -> str:
    """Return the prefix of a virtual control plane's keys; its slash at the end keeps `a` apart from `aa` and `a-b`.

    Raises KeyspaceError where the path cannot be one segment of a key.
    """
    return _checked(f"/clusters/{cluster_path}/")


def _checked(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise KeyspaceError(f"{prefix!r} is not the prefix of a control plane; it must be /clusters/<clusterPath>/")
    return prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """The shared etcd, as its administrator: the user `root` by client certificate.

    Every method may be repeated, and goes on where an earlier call was cut off. Each raises KeyspaceError where etcd
    cannot be reached, does not answer in time or refuses.
    """

    etcdctl: Path
    endpoints: tuple[str, ...]
    credentials: Path
    """Directory with `ca.crt`, `client.crt` and `client.key`."""
    timeout_seconds: float = _TIMEOUT_SECONDS
    """Deadline of each call of etcdctl."""

    async def ensure_authentication(self) -> None:
        """Turn access control on: from then on every user has its own rights only."""
        if (await self._json("auth", "status")).get("enabled"):
            return
        await self._unless(_USER_EXISTS, "user", "add", _ROOT, "--no-password")
        await self._unless(_ROLE_EXISTS, "role", "add", _ROOT)
        await self._run("user", "grant-role", _ROOT, _ROOT)
        await self._run("auth", "enable")

    async def healthy(self) -> bool:
        """Tell whether the etcd answers and has a leader."""
        try:
            await self._run("endpoint", "health")
        except KeyspaceError:
            return False
        return True

    async def grant(self, user: str, *, prefix: str) -> None:
        """Let a user, known by the CN of its client certificate, read and write below a prefix, and nothing else.

        What else it was allowed before is taken back.
        """
        wanted = [_below(_checked(prefix))]
        permissions = await self._permissions(user)
        if permissions != wanted:
            if permissions is not None:
                await self._unless(_NO_ROLE, "role", "delete", user)
            await self._unless(_ROLE_EXISTS, "role", "add", user)
            await self._run("role", "grant-permission", "--prefix=true", user, "readwrite", prefix)
        roles = await self._roles(user)
        if roles != [user]:
            # A role that was deleted is gone from its users; any other one is not ours.
            if roles:
                await self._unless(_NO_USER, "user", "delete", user)
            await self._unless(_USER_EXISTS, "user", "add", user, "--no-password")
            await self._run("user", "grant-role", user, user)

    async def revoke(self, user: str) -> None:
        """Take a user and its rights away."""
        await self._unless(_NO_USER, "user", "delete", user)
        await self._unless(_NO_ROLE, "role", "delete", user)

    async def count(self, prefix: str) -> int:
        """Return the number of keys below a prefix."""
        answer = await self._json("get", _checked(prefix), "--prefix", "--keys-only", "--limit=1")
        return int(answer.get("count", 0))

    async def delete_prefix(self, prefix: str) -> int:
        """Delete every key below a prefix by one range delete, and see that none is left.

        Returns the number of deleted keys. Raises KeyspaceError where keys are there afterwards: somebody still writes.
        """
        answer = await self._json("del", _checked(prefix), "--prefix")
        left = await self.count(prefix)
        if left:
            raise KeyspaceError(f"{left} keys are left below {prefix} after its deletion: something still writes there")
        return int(answer.get("deleted", 0))

    async def _permissions(self, role: str) -> list[dict[str, Any]] | None:
        """Return what a role allows; None where there is no such role."""
        try:
            answer = await self._json("role", "get", role)
        except KeyspaceError as error:
            if _NO_ROLE in str(error):
                return None
            raise
        return list(answer.get("perm") or ())

    async def _roles(self, user: str) -> list[str] | None:
        """Return the roles of a user; None where there is no such user."""
        try:
            answer = await self._json("user", "get", user)
        except KeyspaceError as error:
            if _NO_USER in str(error):
                return None
            raise
        return [str(role) for role in answer.get("roles") or ()]

    async def _unless(self, expected: str, *args: str) -> None:
        """Run etcdctl; an answer with `expected` in it says that there was nothing to do."""
        try:
            await self._run(*args)
        except KeyspaceError as error:
            if expected not in str(error):
                raise

    async def _json(self, *args: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self._run(*args, "-w", "json"))
        return answer

    async def _run(self, *args: str) -> bytes:
        connection = (
            f"--endpoints={','.join(self.endpoints)}",
            f"--cacert={self.credentials}/ca.crt",
            f"--cert={self.credentials}/client.crt",
            f"--key={self.credentials}/client.key",
            f"--command-timeout={self.timeout_seconds:.0f}s",
        )
        try:
            return await run_program(self.etcdctl, [*connection, *args], timeout_seconds=self.timeout_seconds + 2)
        except (ProgramFailed, ProgramTimedOut) as error:
            asked = f"etcdctl {' '.join(args[:3])} at {', '.join(self.endpoints)}"
            raise KeyspaceError(f"{asked}: {_said(error)}") from error


def _below(prefix: str) -> dict[str, Any]:
    """Return the permission for a prefix as etcdctl prints it; after the slash at its end comes a zero."""
    key, end = (base64.b64encode(text.encode()).decode() for text in (prefix, f"{prefix[:-1]}0"))
    return {"permType": _READWRITE, "key": key, "range_end": end}


def _said(error: ProgramFailed | ProgramTimedOut) -> str:
    """Return what etcd said, without the log lines around it."""
    if isinstance(error, ProgramFailed):
        lines = error.stderr.decode(errors="replace").splitlines()
        said = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        if said:
            return "; ".join(said)
    return str(error)
