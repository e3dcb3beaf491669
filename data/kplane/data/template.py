"""Templates: what a control plane's keys were at one time, and putting them back to that."""

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
"""Name of the key that says whose copy the keys beside it are: see `clone`. No object of Kubernetes has such a name."""

_MAX_BYTES: Final = 1 << 20
"""Keys and values in one transaction; etcd takes requests of 1.5 MiB."""

_TRANSIENT: Final = (b"leases/", b"masterleases/", b"peerserverleases/", b"events/", COPY_MARK)
"""What an API server has no use for after a restart. It is in no template."""


def is_mark(key: bytes) -> bool:
    """Tell whether a key, without its prefix, is a note of kplane's beside the data, such as `COPY_MARK`."""
    return key.startswith(b".")


def is_transient(key: bytes) -> bool:
    """Tell whether a key, without its prefix, is a Lease or an Event, or the mark of a copy."""
    return key.startswith(_TRANSIENT)


@dataclass(frozen=True, slots=True)
class Template:
    """The keys of a control plane at one revision, without their prefix, and their values."""

    revision: int
    values: Mapping[bytes, bytes]

    @classmethod
    async def read(cls, client: Client, prefix: str) -> Self:
        """Read the keys of a prefix, without Leases and Events. Raises DataError."""
        revision, values = await _read(client, prefix)
        return cls(revision, {key: value for key, value in values.items() if not is_transient(key)})


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset changed: keys without their prefix."""

    revision: int
    """The keys are as in the template from this revision on."""
    deleted: tuple[bytes, ...]
    put: tuple[bytes, ...]


async def reset(client: Client, prefix: str, template: Template) -> Reset:
    """Make the keys of a prefix those of a template; an API server may run on them.

    Keys that the template lacks are deleted, Leases and Events among them, and what is absent or differs is written.
    Nothing is written or deleted outside of the prefix, and of a running API server's records about itself. This takes
    one transaction if it is at most `MAX_OPERATIONS` changes and 1 MiB, else several. Raises DataError.
    """
    head = prefixes.checked(prefix)
    revision, found = await _read(client, prefix)
    deleted = tuple(key for key in found if key not in template.values and not is_presence(key))
    put = tuple(key for key, value in template.values.items() if found.get(key) != value)
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
    """Tell whether a transaction has one value that may be as large as etcd takes: its conditions have to be short."""
    return len(batch) == 1 and isinstance(batch[0], Put) and len(batch[0].value) > _MAX_BYTES


def batches(changes: Iterable[Operation], *, most: int = MAX_OPERATIONS) -> Iterator[list[Operation]]:
    """Cut changes into transactions of at most `most` operations and about 1 MiB."""
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
