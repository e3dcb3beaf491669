"""Keys and users in a shared etcd: each virtual control plane has a key prefix and a user."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kplane.controlplane_operator.errors import KeyspaceError, PrefixLost, PrefixNotOwned, ValueNotRead
from kplane.data import (
    AlreadyExists,
    Client,
    Credentials,
    DataError,
    DataLost,
    LearnerBehind,
    NotFound,
    NotOwned,
    Original,
    Owner,
    Permission,
    ServedData,
    Template,
    Usage,
    ValueUnreadable,
    claim,
    clone,
    delete_owned,
    disarm,
    discard_unfinished,
    identify,
    identities_below,
    is_copy,
    lacks_data,
    owned_below,
    owned_by,
    owner_of,
    release,
    take_over,
    uid_of,
    usage,
)

__all__ = ["Keyspace", "key_prefix", "template_prefix"]

_CONTROL_PLANES: Final = "/clusters/"
_TEMPLATES: Final = "/kplane.dev/templates/"
_PREFIX: Final = re.compile(r"(/clusters/|/kplane[.]dev/templates/)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/")
_ROOT: Final = "root"
_TIMEOUT_SECONDS: Final = 10.0
_MEASURED_AT_ONCE: Final = 16 << 20
"""Largest answer to a measurement in bytes.

Tenants decide how large their values are, so a limit protects the operator's memory.
"""


def key_prefix(cluster_path: str) -> str:
    """Return the key prefix of a virtual control plane.

    The slash at its end separates path `a` from `aa` and `a-b`. Raises KeyspaceError if the path is not a valid segment
    of a key.
    """
    return _checked(f"{_CONTROL_PLANES}{cluster_path}/")


def template_prefix(name: str) -> str:
    """Return the key prefix of a template, outside of all prefixes of control planes.

    Raises KeyspaceError if the name is not a valid segment of a key.
    """
    return _checked(f"{_TEMPLATES}{name}/")


def _checked(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise KeyspaceError(
            f"{prefix!r} is not the prefix of a control plane or template; it must be /clusters/<clusterPath>/ or"
            f" {_TEMPLATES}<name>/"
        )
    return prefix


class Keyspace:
    """Administration of a shared etcd, as user `root` with a client certificate, on a persistent connection.

    Each method may be repeated, and continues an earlier call that was interrupted. Methods raise KeyspaceError if etcd
    is unreachable, refuses, or exceeds the timeout.
    """

    def __init__(self, endpoint: str, *, credentials: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """Use `ca.crt`, `client.crt` and `client.key` of a directory; renewed files are read again.

        `timeout_seconds` is the timeout of each call.
        """
        self.credentials = credentials
        files = Credentials.in_directory(credentials)
        self._client = Client(endpoint, credentials=files, timeout_seconds=timeout_seconds)
        # A separate connection, so that large answers do not delay calls of reconcilers.
        self._meter = Client(
            endpoint, credentials=files, timeout_seconds=timeout_seconds, receive_at_most=_MEASURED_AT_ONCE
        )

    @property
    def endpoint(self) -> str:
        """URL of the etcd."""
        return self._client.endpoint

    def use(self, credentials: Path) -> None:
        """Use the files of another directory, from the next call on."""
        self.credentials = credentials
        for client in (self._client, self._meter):
            client.connection.use(Credentials.in_directory(credentials))

    async def close(self) -> None:
        """Close the connections; a later call opens them again."""
        await self._client.close()
        await self._meter.close()

    async def ensure_authentication(self) -> bool:
        """Enable access control, which limits each user to its own rights; return whether it was off."""
        with _told():
            return await self._client.access.ensure_enabled()

    async def access_revision(self) -> int:
        """Return the revision of access control, which changes with each change of users and roles."""
        with _told():
            return (await self._client.access.status()).revision

    async def problem(self) -> str | None:
        """Return why the etcd is unhealthy; None if it answers, has a leader, and has raised no alarm."""
        return await self._client.problem()

    async def version(self) -> str:
        """Return the version of the member that answers."""
        with _told():
            return await self._client.version()

    async def size_in_use(self) -> int:
        """Return the number of bytes that the database uses, history included."""
        with _told():
            return await self._client.size_in_use()

    async def revision(self) -> int:
        """Return the current revision of the etcd."""
        with _told():
            return await self._client.revision()

    async def usage(self, prefix: str, *, share: float) -> Usage:
        """Measure the keys of a prefix. Calls take at most `share` of the time, and pauses take the rest."""
        with _told():
            return await usage(self._meter, _checked(prefix), share=share)

    async def disarm(self) -> bool:
        """Disarm the NOSPACE alarm of an etcd that has free space again; return whether an alarm was disarmed."""
        credentials = Credentials.in_directory(self.credentials)
        with _told():
            return await disarm(self._client, member=lambda url: Client(url, credentials=credentials))

    async def promote_learners(self) -> list[str]:
        """Promote each learner that has started and has the data; return their names."""
        promoted: list[str] = []
        with _told():
            members = await self._client.members.list()
            learners = [member for member in members if member.learner and member.name]
            if not learners:
                return promoted
            number = await self._client.members.leader()
            leader = next((member.client_url for member in members if member.id == number), "")
            if not leader:
                return promoted
            # Only the leader accepts the call: other members forward it without a user, and the leader refuses it.
            credentials = Credentials.in_directory(self.credentials)
            async with Client(leader, credentials=credentials, timeout_seconds=_TIMEOUT_SECONDS) as client:
                for member in learners:
                    with suppress(LearnerBehind):
                        await client.members.promote(member.id)
                        promoted.append(member.name)
        return promoted

    async def grant(self, user: str, *, prefix: str, read_only: bool = False) -> bool:
        """Let a user, identified by the CN of its client certificate, read and write below a prefix, and no other keys.

        With `read_only`, the user cannot write from the return on. All other rights of the user are revoked, and its
        remaining rights stay in force meanwhile. Returns whether any right was changed.
        """
        access = self._client.access
        desired = Permission.below(_checked(prefix), kind="read" if read_only else "readwrite")
        changed = False
        with _told():
            permissions = await access.permissions_of(user)
            if permissions != frozenset({desired}):
                changed = True
                if permissions is None:
                    await _unless(AlreadyExists, access.add_role(user))
                await access.grant_permission(user, desired)
                for other in permissions or ():
                    if (other.key, other.range_end) != (desired.key, desired.range_end):
                        await _unless(NotFound, access.revoke_permission(user, other))
            roles = await access.roles_of(user)
            if roles != (user,):
                changed = True
                if roles is None:
                    await _unless(AlreadyExists, access.add_user(user))
                for role in set(roles or ()) - {user}:
                    await _unless(NotFound, access.revoke_role(user, role))
                if user not in (roles or ()):
                    await access.grant_role(user, user)
        return changed

    async def revoke(self, user: str) -> None:
        """Delete a user and its rights."""
        with _told():
            await _unless(NotFound, self._client.access.delete_user(user))
            await _unless(NotFound, self._client.access.delete_role(user))

    async def has_user(self, user: str) -> bool:
        """Return whether a user exists, with or without rights."""
        with _told():
            return await self._client.access.roles_of(user) is not None

    async def count(self, prefix: str) -> int:
        """Return the number of keys below a prefix."""
        with _told():
            return await self._client.count(_checked(prefix))

    async def owner(self, prefix: str) -> Owner | None:
        """Return the owner of a prefix; None if it has no owner key."""
        with _told():
            return await owner_of(self._client, _checked(prefix))

    async def claim(self, prefix: str, *, owner: Owner, known: bool) -> None:
        """Claim a prefix for the owner.

        A prefix with keys and without an owner key is only claimed if `known`, which means that the owner wrote these
        keys. Raises PrefixNotOwned.
        """
        with _told():
            await claim(self._client, _checked(prefix), owner=owner, known=known)

    async def identify(self, prefix: str, *, owner: Owner, served: ServedData | None, given_up: str | None) -> str:
        """Return the identity of the owner's data, as `kplane.data.identify` does. Raises PrefixLost."""
        with _told():
            checked = _checked(prefix)
            guard = [owned_by(checked, owner)]
            return await identify(self._client, checked, served=served, given_up=given_up, only_if=guard)

    async def identities(self) -> dict[str, str]:
        """Return the identities of the data of all control planes, by prefix."""
        with _told():
            return await identities_below(self._client, _CONTROL_PLANES)

    async def take_over(self, prefix: str, *, former: Owner | None, owner: Owner) -> None:
        """Transfer a prefix and its keys to the owner if `former` still owns it. Raises PrefixNotOwned."""
        with _told():
            await take_over(self._client, _checked(prefix), former=former, owner=owner)

    async def release(self, prefix: str, *, owner: Owner) -> None:
        """Release the prefix if the owner has it, and it has no keys."""
        with _told():
            await release(self._client, _checked(prefix), owner=owner)

    async def delete_prefix(self, prefix: str, *, owner: Owner) -> int:
        """Delete all keys below a prefix, and its owner key; return the number of keys.

        Raises PrefixNotOwned once the owner no longer has the prefix; no further key is deleted then.
        """
        with _told():
            return await delete_owned(self._client, _checked(prefix), owner=owner)

    async def template(self, prefix: str) -> Template:
        """Read the keys of a prefix at one revision."""
        with _told():
            return await Template.read(self._client, _checked(prefix))

    async def templates(self) -> dict[str, Owner]:
        """Return the owners of all templates, by name."""
        with _told():
            owners = await owned_below(self._client, _TEMPLATES)
        return {prefix.removeprefix(_TEMPLATES).rstrip("/"): owner for prefix, owner in owners.items()}

    async def clone(
        self, original: Original, prefix: str, *, owner: Owner, replaced: str, without: Collection[bytes]
    ) -> bool:
        """Copy the original to a prefix of the owner; return False if the prefix has other keys, which stay.

        In the copy, `replaced` takes the place of the original's placeholder, and the keys `without` are omitted.
        Raises PrefixNotOwned.
        """
        with _told():
            return await clone(
                self._client, original, _checked(prefix), owner=owner, replaced=replaced, without=without
            )

    async def lacks_data(self, prefix: str, *, owner: Owner) -> bool:
        """Return whether a prefix has no keys, or only keys of an unfinished copy for this owner."""
        with _told():
            return await lacks_data(self._client, _checked(prefix), owner=owner)

    async def discard_unfinished(self, prefix: str, *, owner: Owner) -> None:
        """Delete the keys of an unfinished copy for this owner. Raises PrefixNotOwned."""
        with _told():
            await discard_unfinished(self._client, _checked(prefix), owner=owner)

    async def is_copy(self, prefix: str, *, owner: Owner) -> bool:
        """Return whether the keys of a prefix are a finished copy made for this owner."""
        with _told():
            return await is_copy(self._client, _checked(prefix), owner=owner)

    async def uid(self, prefix: str, key: str) -> str | None:
        """Return the uid of the object with this key below a prefix; None if it does not exist.

        Raises ValueNotRead if the value has an unknown encoding, for example if it is encrypted.
        """
        with _told():
            entry = await self._client.get(f"{_checked(prefix)}{key}".encode())
            return uid_of(entry.value) if entry is not None else None


async def _unless(expected: type[DataError], call: Awaitable[None]) -> None:
    """Await the call, and ignore an error of this type, which means that the change was already made."""
    with suppress(expected):
        await call


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except NotOwned as error:
        raise PrefixNotOwned(error) from error
    except DataLost as error:
        raise PrefixLost(error) from error
    except ValueUnreadable as error:
        raise ValueNotRead(str(error)) from error
    except DataError as error:
        raise KeyspaceError(str(error)) from error
