"""Waits until a condition on an object is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, overload

import orjson

from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client
from kplane.provider.client.keys import Named, locate
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind, ObjectT, as_kind
from kplane.provider.errors import WaitTimedOut
from kplane.provider.objects.identity import Object

__all__ = ["wait_for"]

_SHOWN: Final = 1000
_HIDDEN: Final = ("data", "stringData")


@overload
async def wait_for(
    client: Client,
    kind: Resource | str,
    key: str | Named,
    condition: Callable[[Object | None], object],
    *,
    namespace: str | None = None,
    timeout_seconds: float,
) -> Object | None: ...
@overload
async def wait_for(
    client: Client,
    kind: type[ObjectT],
    key: str | Named,
    condition: Callable[[ObjectT | None], object],
    *,
    namespace: str | None = None,
    timeout_seconds: float,
) -> ObjectT | None: ...
async def wait_for(
    client: Client,
    kind: Kind[ObjectT],
    key: str | Named,
    condition: Callable[[ObjectT | None], object],
    *,
    namespace: str | None = None,
    timeout_seconds: float,
) -> ObjectT | None:
    """Wait until `condition` is true for an object, and return that state of the object.

    `condition` gets None while the object does not exist. Each change evaluates the condition again, and rapid changes
    may be skipped. RBAC needs only `get` and `watch` on the object. In a reconcile, return a `Result` instead, because
    a waiting reconcile occupies its worker.

    If `kind` is a class, `condition` gets instances. Raises WaitTimedOut after `timeout_seconds`, with the last state
    of the object; NotServed, Forbidden, and DecodeFailed for a state that the class does not accept.
    """
    resource = await client.resource(kind)
    name, namespace = locate(key, namespace=namespace)
    resource.require_namespace(namespace, name=name)
    informer = Informer(client, resource, namespace=namespace, name=name)
    changed = asyncio.Event()
    informer.add_handler(lambda _event: changed.set())
    informer.start()
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            await informer.wait_synced(unless_refused=True)
            while True:
                changed.clear()
                found = informer.get(name, namespace=namespace)
                existing = None if found is None else as_kind(kind, found, source=client.config.server)
                if condition(existing):
                    return existing
                await changed.wait()
    except TimeoutError as error:
        if not limit.expired():
            raise
        title = f"{resource} {'/'.join(filter(None, (namespace, name)))}"
        asked = getattr(condition, "__name__", "").replace("<lambda>", "") or "the condition"
        last = _last(informer, name, namespace)
        raise WaitTimedOut(
            f"failed to wait for {title}: {asked} is not true after {timeout_seconds:g} s; {last}"
        ) from error
    finally:
        await informer.aclose()


def _last(informer: Informer, name: str, namespace: str | None) -> str:
    if not informer.synced.is_set():
        return f"it was not read: {informer.error or 'the server did not answer'}"
    existing = informer.get(name, namespace=namespace)
    if existing is None:
        return "it does not exist" + (f", and {informer.error}" if informer.error else "")
    shown = existing.get("status") or {field: value for field, value in existing.items() if field != "metadata"}
    if informer.resource.kind == "Secret":
        shown = {field: value for field, value in shown.items() if field not in _HIDDEN}
    text = orjson.dumps(shown).decode()
    ending = " (it is being deleted)" if existing["metadata"].get("deletionTimestamp") else ""
    return f"it is{ending} {text if len(text) <= _SHOWN else f'{text[: _SHOWN - 1]}…'}"
