"""Keeps the caBundle of webhook configurations and of conversions up to date, and applies configurations."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from typing_extensions import override

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.scope import CacheScope
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.errors import ProviderError
from kplane.provider.webhooks.reviews import Object

__all__ = ["BundleTarget", "Configure", "keep_bundle"]

log: Final = logging.getLogger(__name__)

Configure = Callable[[], Awaitable[Object]]
"""Returns the webhook configuration to apply."""

_RETRY_SECONDS: Final = 1.0
_LONGEST_RETRY_SECONDS: Final = 60.0


class BundleTarget(NamedTuple):
    """A webhook configuration or a CustomResourceDefinition, by its name."""

    resource: Resource
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.resource} {self.name}"


async def keep_bundle(
    cluster: Cluster, target: BundleTarget, change: Callable[[bytes], bytes], *, configure: Configure | None = None
) -> NoReturn:
    """Write the caBundle of an object whenever the object changes, until cancelled.

    `change` returns the caBundle that replaces another one. With `configure`, the webhook configuration is applied
    first, and again when it was deleted. A failure is logged and retried with a backoff. An object that is missing
    otherwise is written when it is there.
    """
    backoff = Backoff(initial_seconds=_RETRY_SECONDS, maximum_seconds=_LONGEST_RETRY_SECONDS)
    changed = asyncio.Event()
    informer = cluster.cache.informer(target.resource, scope=CacheScope(name=target.name))
    registration = informer.add_handler(lambda _event: changed.set())
    problem = ""
    # Replicas of different versions would undo each other's configuration, if each of them applied it at any change.
    applied = configure is None
    try:
        while True:
            changed.clear()
            delay = None
            action = "write the caBundle of"
            try:
                await informer.wait_synced(unless_refused=True)
                found = informer.get(target.name)
                if configure is not None and (found is None or not applied):
                    action = "apply"
                    found = await cluster.client.apply(target.resource, await configure(), force=True)
                    log.info("applied %s", target)
                    applied, action = True, "write the caBundle of"
                await _write(cluster, target, found, change)
                backoff.reset()
                problem = ""
            except ProviderError as error:
                delay = backoff.next_delay()
                if str(error) != problem:
                    problem = str(error)
                    log.warning("failed to %s %s: %s", action, target, problem)
            except Exception:
                delay = backoff.next_delay()
                log.exception("failed to %s %s", action, target)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await changed.wait()
    finally:
        registration.remove()


async def _write(
    cluster: Cluster, target: BundleTarget, found: Object | None, change: Callable[[bytes], bytes]
) -> None:
    if found is None:
        raise ProviderError("it does not exist; create it")
    operations: list[Object] = []
    configurations = [*_client_configurations(target.resource, found)]
    if not configurations:
        raise ProviderError("it has no webhook with a clientConfig; add it")
    for path, client_configuration in configurations:
        bundle = client_configuration.get("caBundle")
        changed = base64.b64encode(change(_decoded(bundle))).decode()
        if changed != bundle:
            operations.append({"op": "add", "path": f"{path}/caBundle", "value": changed})
    if operations:
        # The paths of a list hold for this version alone.
        version = found["metadata"]["resourceVersion"]
        same: Object = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        _ = await cluster.client.json_patch(target.resource, target.name, [same, *operations])
        log.info("wrote the caBundle of %s", target)


def _client_configurations(resource: Resource, found: Object) -> Iterator[tuple[str, Object]]:
    """Yield the JSON pointer and the content of each clientConfig."""
    if resource == CUSTOM_RESOURCE_DEFINITIONS:
        webhook = _object(_object(found.get("spec")).get("conversion")).get("webhook")
        if configuration := _object(_object(webhook).get("clientConfig")):
            yield "/spec/conversion/webhook/clientConfig", configuration
        return
    webhooks = found.get("webhooks")
    for number, webhook in enumerate(webhooks if isinstance(webhooks, list) else ()):
        if configuration := _object(_object(webhook).get("clientConfig")):
            yield f"/webhooks/{number}/clientConfig", configuration


def _object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _decoded(bundle: object) -> bytes:
    if not isinstance(bundle, str):
        return b""
    try:
        return base64.b64decode(bundle)
    except binascii.Error:
        return b""
