"""Templates: the keys of a control plane at one revision. A reset restores the keys of a prefix to a template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from kplane.data import prefix as prefixes
from kplane.data.api_server import is_presence
from kplane.data.client import MAX_OPERATIONS, Client, Delete, Operation, Put
from kplane.data.errors import DataError

__all__ = ["COPY_MARK", "Reset", "Template", "batches", "is_large", "is_mark", "is_transient", "reset"]

COPY_MARK: Final = b".copy"
"""Name of the key that records the state of a copy beside it; see `copying`. No Kubernetes object has such a name."""

_MAX_BYTES: Final = 1 << 20
"""Maximum size of the keys and values per transaction, in bytes; etcd accepts requests of 1.5 MiB by default."""

_TRANSIENT: Final = (b"leases/", b"masterleases/", b"peerserverleases/", b"events/", COPY_MARK)
"""Keys that an API server does not need after a restart, and the mark of a copy. Templates omit these keys."""


def is_mark(key: bytes) -> bool:
    """Return whether a key, without its prefix, is kplane's own mark beside the data, such as `COPY_MARK`."""
    return key.startswith(b".")


def is_transient(key: bytes) -> bool:
    """Return whether a key, without its prefix, is a Lease, an Event, or the mark of a copy."""
    return key.startswith(_TRANSIENT)


@dataclass(frozen=True, slots=True)
class Template:
    """Keys and values of a control plane at one revision, without the prefix."""

    revision: int
    values: Mapping[bytes, bytes]

    @classmethod
    async def read(cls, client: Client, prefix: str) -> Self:
        """Read the keys of a prefix, without Leases and Events. Raises DataError."""
        revision, values = await _read(client, prefix)
        return cls(revision, {key: value for key, value in values.items() if not is_transient(key)})


@dataclass(frozen=True, slots=True)
class Reset:
    """Result of a reset: changed keys without their prefix."""

    revision: int
    """Revision from which on the keys equal the template."""
    deleted: tuple[bytes, ...]
    put: tuple[bytes, ...]


async def reset(client: Client, prefix: str, template: Template) -> Reset:
    """Reset the keys of a prefix to a template; an API server may be running on the keys.

    The reset writes the template's missing and changed keys. It deletes all other keys, including Leases and Events,
    except a running API server's records about itself. The reset is a single transaction if it has at most
    `MAX_OPERATIONS` changes and 1 MiB, and several otherwise. Raises DataError.
    """
    head = prefixes.checked(prefix)
    revision, existing = await _read(client, prefix)
    deleted = tuple(key for key in existing if key not in template.values and not is_presence(key))
    put = tuple(key for key, value in template.values.items() if existing.get(key) != value)
    changes: list[Operation] = [Put(head + key, template.values[key]) for key in put]
    changes += [Delete(head + key) for key in deleted]
    for batch in batches(changes):
        revision = (await client.apply(batch)).revision
    return Reset(revision, deleted, put)


async def _read(client: Client, prefix: str) -> tuple[int, dict[bytes, bytes]]:
    head = prefixes.checked(prefix)
    revision, values = 0, dict[bytes, bytes]()
    async for page in client.pages(prefix):
        revision = page.revision
        for item in page.items:
            if not item.key.startswith(head):
                raise DataError(f"etcd at {client.endpoint} answered with {item.key!r}, which is not below {prefix}")
            values[item.key.removeprefix(head)] = item.value
    return revision, values


def is_large(batch: Sequence[Operation]) -> bool:
    """Return whether a transaction has a single value near etcd's size limit, so that its conditions must be short."""
    return len(batch) == 1 and isinstance(batch[0], Put) and len(batch[0].value) > _MAX_BYTES


def batches(changes: Iterable[Operation], *, most: int = MAX_OPERATIONS) -> Iterator[list[Operation]]:
    """Split changes into transactions of at most `most` operations and about 1 MiB."""
    batch, size = list[Operation](), 0
    for change in changes:
        weight = len(change.key) + (len(change.value) if isinstance(change, Put) else 0)
        if batch and (len(batch) == most or size + weight > _MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += weight
    if batch:
        yield batch
