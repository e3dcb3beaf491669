"""The shared etcd: a key prefix and a user for each virtual control plane."""

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

_TEMPLATES: Final = "/kplane.dev/templates/"
_PREFIX: Final = re.compile(r"(/clusters/|/kplane[.]dev/templates/)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/")
_ROOT: Final = "root"
_TIMEOUT_SECONDS: Final = 10.0
_MEASURED_AT_ONCE: Final = 16 << 20
"""The largest answer to a measurement. A tenant decides how large its values are, and must not fill our memory."""


def key_prefix(cluster_path: str) -> str:
    """Return the prefix of a virtual control plane's keys; its slash at the end keeps `a` apart from `aa` and `a-b`.

    Raises KeyspaceError where the path cannot be one segment of a key.
    """
    return _checked(f"/clusters/{cluster_path}/")


def template_prefix(name: str) -> str:
    """Return the prefix of a template's keys, where no control plane has its own.

    Raises KeyspaceError where the name cannot be one segment of a key.
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
    """The shared etcd, as its administrator: the user `root` by client certificate, on one kept connection.

    Every method may be repeated, and goes on where an earlier call was cut off. Each raises KeyspaceError where etcd
    cannot be reached, does not answer in time or refuses.
    """

    def __init__(self, endpoint: str, *, credentials: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """Use the `ca.crt`, `client.crt` and `client.key` of a directory; renewed files are read again.

        `timeout_seconds` is the deadline of each call.
        """
        self.credentials = credentials
        files = Credentials.in_directory(credentials)
        self._client = Client(endpoint, credentials=files, timeout_seconds=timeout_seconds)
        # A connection of its own: large answers do not delay what reconciles wait for.
        self._meter = Client(
            endpoint, credentials=files, timeout_seconds=timeout_seconds, receive_at_most=_MEASURED_AT_ONCE
        )

    @property
    def endpoint(self) -> str:
        """The URL of the etcd."""
        return self._client.endpoint

    def use(self, credentials: Path) -> None:
        """Use the files of another directory, from the next call on."""
        self.credentials = credentials
        for client in (self._client, self._meter):
            client.connection.use(Credentials.in_directory(credentials))

    async def close(self) -> None:
        """Close the connection; a later call opens it again."""
        await self._client.close()
        await self._meter.close()

    async def ensure_authentication(self) -> bool:
        """Turn access control on: from then on every user has its own rights only. Tell whether it was off."""
        with _told():
            return await self._client.access.ensure_enabled()

    async def access_revision(self) -> int:
        """Return a number that is another one after each change of users and roles."""
        with _told():
            return (await self._client.access.status()).revision

    async def problem(self) -> str | None:
        """Say why the etcd is not healthy; None if it has a leader, answers, and raised no alarm."""
        return await self._client.problem()

    async def version(self) -> str:
        """Return the version of the member that answers."""
        with _told():
            return await self._client.version()

    async def size_in_use(self) -> int:
        """Return how many bytes the database has in use, history included."""
        with _told():
            return await self._client.size_in_use()

    async def usage(self, prefix: str, *, share: float) -> Usage:
        """Measure the keys of a prefix, with pauses: calls take at most this share of the time."""
        with _told():
            return await usage(self._meter, _checked(prefix), share=share)

    async def disarm(self) -> bool:
        """Have an etcd that was full take writes again, if it has room now; tell whether that was needed and done."""
        credentials = Credentials.in_directory(self.credentials)
        with _told():
            return await disarm(self._client, member=lambda url: Client(url, credentials=credentials))

    async def promote_learners(self) -> list[str]:
        """Give each learner its vote that has started and has the data; returns their names."""
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
            # What another member passes on to the leader names no user, and is refused.
            credentials = Credentials.in_directory(self.credentials)
            async with Client(leader, credentials=credentials, timeout_seconds=_TIMEOUT_SECONDS) as client:
                for member in learners:
                    with suppress(LearnerBehind):
                        await client.members.promote(member.id)
                        promoted.append(member.name)
        return promoted

    async def grant(self, user: str, *, prefix: str, read_only: bool = False) -> bool:
        """Let a user, known by the CN of its client certificate, read and write below a prefix, and nothing else.

        With `read_only` it writes nothing from the return on. What else it was allowed before is taken back, and what
        it may keep is not interrupted. Tell whether something had to be changed.
        """
        access = self._client.access
        wanted = Permission.below(_checked(prefix), kind="read" if read_only else "readwrite")
        changed = False
        with _told():
            permissions = await access.permissions_of(user)
            if permissions != frozenset({wanted}):
                changed = True
                if permissions is None:
                    await _unless(AlreadyExists, access.add_role(user))
                await access.grant_permission(user, wanted)
                for other in permissions or ():
                    if (other.key, other.range_end) != (wanted.key, wanted.range_end):
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
        """Take a user and its rights away."""
        with _told():
            await _unless(NotFound, self._client.access.delete_user(user))
            await _unless(NotFound, self._client.access.delete_role(user))

    async def has_user(self, user: str) -> bool:
        """Tell whether a user exists, whatever it may do."""
        with _told():
            return await self._client.access.roles_of(user) is not None

    async def count(self, prefix: str) -> int:
        """Return the number of keys below a prefix."""
        with _told():
            return await self._client.count(_checked(prefix))

    async def owner(self, prefix: str) -> Owner | None:
        """Return who owns a prefix; None if it has no owner key."""
        with _told():
            return await owner_of(self._client, _checked(prefix))

    async def claim(self, prefix: str, *, owner: Owner, known: bool) -> None:
        """Make a prefix the owner's. One that has keys and no owner goes only to an owner `known` to have made them.

        Raises PrefixNotOwned.
        """
        with _told():
            await claim(self._client, _checked(prefix), owner=owner, known=known)

    async def identify(self, prefix: str, *, owner: Owner, served: ServedData | None, given_up: str | None) -> str:
        """Return the identity of the owner's data, as `kplane.data.identify` does. Raises PrefixLost."""
        with _told():
            checked = _checked(prefix)
            guard = [owned_by(checked, owner)]
            return await identify(self._client, checked, served=served, given_up=given_up, only_if=guard)

    async def take_over(self, prefix: str, *, former: Owner | None, owner: Owner) -> None:
        """Make a prefix with its keys the owner's, if `former` has it still. Raises PrefixNotOwned."""
        with _told():
            await take_over(self._client, _checked(prefix), former=former, owner=owner)

    async def release(self, prefix: str, *, owner: Owner) -> None:
        """Give the prefix up if it is the owner's and has no key."""
        with _told():
            await release(self._client, _checked(prefix), owner=owner)

    async def delete_prefix(self, prefix: str, *, owner: Owner) -> int:
        """Delete every key below a prefix, and that it is the owner's; returns the number of keys.

        Raises PrefixNotOwned from the moment at which it is not the owner's; then nothing more is deleted.
        """
        with _told():
            return await delete_owned(self._client, _checked(prefix), owner=owner)

    async def template(self, prefix: str) -> Template:
        """Read the keys of a prefix at one revision."""
        with _told():
            return await Template.read(self._client, _checked(prefix))

    async def templates(self) -> dict[str, Owner]:
        """Return the names of all templates, with who owns each."""
        with _told():
            found = await owned_below(self._client, _TEMPLATES)
        return {prefix.removeprefix(_TEMPLATES).rstrip("/"): owner for prefix, owner in found.items()}

    async def clone(
        self, original: Original, prefix: str, *, owner: Owner, replaced: str, without: Collection[bytes]
    ) -> bool:
        """Have the keys of a prefix be a copy made for its owner; False if it has other keys, which stay.

        The copy has `replaced` in the place of the original's placeholder, and leaves the keys `without` out. Raises
        PrefixNotOwned.
        """
        with _told():
            return await clone(
                self._client, original, _checked(prefix), owner=owner, replaced=replaced, without=without
            )

    async def lacks_data(self, prefix: str, *, owner: Owner) -> bool:
        """Tell whether a prefix has no keys, or only those of a copy for this owner that was cut off."""
        with _told():
            return await lacks_data(self._client, _checked(prefix), owner=owner)

    async def discard_unfinished(self, prefix: str, *, owner: Owner) -> None:
        """Delete the keys of a copy for this owner that was cut off. Raises PrefixNotOwned."""
        with _told():
            await discard_unfinished(self._client, _checked(prefix), owner=owner)

    async def is_copy(self, prefix: str, *, owner: Owner) -> bool:
        """Tell whether the keys of a prefix are a finished copy that was made for this owner."""
        with _told():
            return await is_copy(self._client, _checked(prefix), owner=owner)

    async def uid(self, prefix: str, key: str) -> str | None:
        """Return the uid of the object with this key of a prefix; None if there is none.

        Raises ValueNotRead if the value is none of ours, such as one that is encrypted.
        """
        with _told():
            found = await self._client.get(f"{_checked(prefix)}{key}".encode())
            return uid_of(found.value) if found is not None else None


async def _unless(expected: type[DataError], call: Awaitable[None]) -> None:
    """Make a call; this error says that there was nothing to do."""
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
