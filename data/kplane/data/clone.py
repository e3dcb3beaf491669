"""Clones: the keys of a control plane, rewritten for another control plane with a fresh uid for each object.

All uids have the same length. A clone therefore replaces each uid byte by byte wherever the uid occurs: in keys, in
protobuf and in JSON. The replacement includes the owner references of other objects.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from kplane.data.api_server import is_place
from kplane.data.archive import Pair
from kplane.data.client import Client
from kplane.data.copying import write_copy
from kplane.data.errors import DataError, ValueEncrypted, ValueUnreadable
from kplane.data.owner import Owner
from kplane.data.template import Template, is_mark, is_transient
from kplane.data.uids import creation_time_like, creation_time_of, secret_type_of, uid_of, without_owners
from kplane.data.usage import Usage

__all__ = ["MOST_CLONED", "Cloning", "Original", "clone"]

MOST_CLONED: Final = 200_000
"""Maximum number of objects in a clone. Memory holds their uids, about 250 bytes per object, and no values."""

_HEX: Final = rb"[0-9a-f]"
_FORM: Final = re.compile(_HEX + rb"{8}(?:-" + _HEX + rb"{4}){3}-" + _HEX + rb"{12}")
_DASHES: Final = re.compile(rb"(?:-" + _HEX + rb"{4}){3}-")
_BEFORE: Final = 8
"""Bytes of a uid before the part that `_DASHES` matches."""
_UID_LENGTH: Final = 36
_OF_ONE_API_SERVER: Final = (b"configmaps/kube-system/extension-apiserver-authentication",)
"""An API server's record of its own certificates. The API server of a copy would add its own, and trust both."""
_ISSUED: Final = (b"certificatesigningrequests/", b"podcertificaterequests/")
_ISSUED_SECRETS: Final = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})
_OF_ONE_AUTHORITY: Final = b"configmaps/kube-public/cluster-info"
"""Address and CA of the API server for joining nodes, signed with bootstrap tokens. kubeadm's add-on writes the key."""
_ROOT_CA: Final = re.compile(rb"configmaps/[^/]+/kube-root-ca[.]crt")
"""The CA in each namespace. kube-controller-manager writes the key."""
_OF_NODES: Final = (b"minions/", b"csinodes/", b"volumeattachments/")


@dataclass(frozen=True, slots=True)
class Original:
    """A template prepared for many copies: each value is cut once at its uids and at its creation time."""

    uids: frozenset[bytes]
    times: frozenset[bytes]
    """Creation times in the form that `creation_time_of` returns."""
    _pieces: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    """The value of each key, cut into pieces. A copy replaces the pieces at odd indexes."""

    @classmethod
    def of(cls, template: Template, *, placeholder: str = "") -> Self:
        """Prepare a template. Each copy replaces `placeholder`, which has the form of a uid, with a string of its own.

        Raises ValueUnreadable if the uid of a value cannot be read.
        """
        values = {key: value for key, value in template.values.items() if key not in _OF_ONE_API_SERVER}
        uids = frozenset(uid for value in values.values() if (uid := _uid_in(value)) is not None)
        replaced = uids | ({_checked(placeholder)} if placeholder else set())
        times = {key: creation_time_of(value) for key, value in values.items()}
        pieces = tuple((key, tuple(_cut_at(times[key], _cut(value, replaced)))) for key, value in values.items())
        return cls(uids, frozenset(time for time in times.values() if time is not None), pieces)

    def copied(self, *, replaced: str = "", without: Collection[bytes] = ()) -> Iterator[Pair]:
        """Yield the pairs of a copy: keys without prefix, with a fresh uid for each object and now as creation time.

        `replaced` takes the place of the placeholder. The keys in `without` are omitted. Raises ValueUnreadable if the
        value has a placeholder and `replaced` does not have the form of a uid.
        """
        now = datetime.now(UTC)
        fresh = {uid: _fresh() for uid in self.uids} | {time: creation_time_like(time, now) for time in self.times}
        for key, pieces in self._pieces:
            if key in without:
                continue
            if len(pieces) == 1:
                yield key, pieces[0]
                continue
            copy = list(pieces)
            for place in range(1, len(pieces), 2):
                copy[place] = fresh.get(pieces[place]) or _checked(replaced)
            yield key, b"".join(copy)

    def usage(self, prefix: str, *, without: Collection[bytes] = ()) -> Usage:
        """Return the size of a copy below a prefix, without its mark and without etcd's own overhead for each key."""
        sizes = [len(key) + sum(map(len, pieces)) for key, pieces in self._pieces if key not in without]
        return Usage(len(sizes), sum(sizes) + len(sizes) * len(prefix.encode()))


class Cloning:
    """Rewrites a control plane's keys for another control plane: `learn` all pairs, then pass the pairs to `copied`.

    A clone omits issued credentials, the records of the API server's address, keys with a lifetime, and nodes. It also
    omits owner references to omitted objects: the garbage collector would delete objects whose owners are all missing.
    """

    def __init__(self, *, nodes: bool = False, replaced: tuple[str, str] | None = None) -> None:
        """Keep nodes if `nodes` is true. `replaced` is a further string in the form of a uid, and its replacement."""
        self._nodes = nodes
        self.references_removed = 0
        """Number of removed owner references to omitted objects."""
        self._left_out: set[bytes] = set()
        """Uids of omitted objects."""
        self._fresh: dict[bytes, bytes] = {_checked(replaced[0]): _checked(replaced[1])} if replaced is not None else {}

    def learn(self, pairs: Iterable[Pair]) -> None:
        """Read the uids of pairs, and assign fresh uids.

        Raises ValueEncrypted and ValueUnreadable for such a value. Raises DataError if the pairs have more than
        `MOST_CLONED` uids.
        """
        for key, value in pairs:
            if _is_of_no_use(key):
                self._note_left_out(value)
                continue
            try:
                uid = _uid_in(value)
                if uid is not None and self._is_left_out(key, value):
                    self._left_out.add(uid)
            except ValueEncrypted:
                raise ValueEncrypted(f"{key.decode(errors='replace')} is encrypted at rest") from None
            except ValueUnreadable as error:
                raise ValueUnreadable(f"{key.decode(errors='replace')}: {error}") from None
            if uid is not None and uid not in self._fresh:
                self._fresh[uid] = _fresh()
        if len(self._fresh) > MOST_CLONED:
            raise DataError(f"it has more than {MOST_CLONED} objects, which is the most that is cloned")

    def copied(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return the pairs that the clone keeps, rewritten for the clone."""
        kept = ((key, value) for key, value in pairs if not self._is_left_out(key, value))
        return [(self._renewed(key), self._renewed(self._without_owners(value))) for key, value in kept]

    def _note_left_out(self, value: bytes) -> None:
        # The value may be encrypted or empty. Such an object has no readable uid, so owner references to it stay.
        with contextlib.suppress(ValueUnreadable):
            if (uid := _uid_in(value)) is not None:
                self._left_out.add(uid)

    def _without_owners(self, value: bytes) -> bytes:
        if len(_cut(value, self._left_out)) == 1:
            return value
        value, removed = without_owners(value, self._left_out)
        self.references_removed += removed
        return value

    def _is_left_out(self, key: bytes, value: bytes) -> bool:
        if _is_of_no_use(key) or key in _OF_ONE_API_SERVER or key == _OF_ONE_AUTHORITY or _ROOT_CA.fullmatch(key):
            return True
        if key.startswith(b"secrets/"):
            return secret_type_of(value) in _ISSUED_SECRETS
        return not self._nodes and key.startswith(_OF_NODES)

    def _renewed(self, text: bytes) -> bytes:
        pieces = _cut(text, self._fresh)
        for place in range(1, len(pieces), 2):
            pieces[place] = self._fresh[pieces[place]]
        return b"".join(pieces)


async def clone(
    client: Client,
    original: Original,
    prefix: str,
    *,
    owner: Owner,
    replaced: str = "",
    without: Collection[bytes] = (),
) -> bool:
    """Make the keys of a prefix a copy for its owner, and return whether they are that copy; see `write_copy`.

    `replaced` and `without` are the arguments of `Original.copied`.
    """

    async def groups() -> AsyncIterator[Iterable[Pair]]:
        yield original.copied(replaced=replaced, without=without)

    return await write_copy(client, groups(), prefix, owner=owner)


def _is_of_no_use(key: bytes) -> bool:
    return is_mark(key) or is_transient(key) or is_place(key) or key.startswith(_ISSUED)


def _cut(text: bytes, uids: Collection[bytes]) -> list[bytes]:
    """Cut a text at these uids. The uids are the pieces at odd indexes."""
    pieces, end = list[bytes](), 0
    for dashes in _DASHES.finditer(text):
        start = dashes.start() - _BEFORE
        if start >= end and (candidate := text[start : start + _UID_LENGTH]) in uids:
            pieces += (text[end:start], candidate)
            end = start + _UID_LENGTH
    return [*pieces, text[end:]]


def _cut_at(time: bytes | None, pieces: list[bytes]) -> list[bytes]:
    """Cut the pieces at even indexes at a creation time. The uids and the creation times then have odd indexes."""
    if time is None:
        return pieces
    cut = list[bytes]()
    for place, piece in enumerate(pieces):
        if place % 2:
            cut.append(piece)
            continue
        first, *rest = piece.split(time)
        cut.append(first)
        for part in rest:
            cut += (time, part)
    return cut


def _uid_in(value: bytes) -> bytes | None:
    uid = uid_of(value)
    return _checked(uid) if uid is not None else None


def _checked(uid: str) -> bytes:
    encoded = uid.encode()
    if not _FORM.fullmatch(encoded):
        raise ValueUnreadable(f"{uid!r} does not have the form of a uid")
    return encoded


def _fresh() -> bytes:
    return str(uuid.uuid4()).encode()
