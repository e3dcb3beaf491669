"""Custom kinds of tests, whose objects may look as they like."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from kplane.provider import AlreadyExists, Client, NotFound, Resource
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS


async def install(client: Client, resource: Resource, *versions: str) -> None:
    """Have an API server serve a kind: the resource's version, and `versions` alike. They stay until it goes."""
    group, version = resource.api_version.split("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": resource.kind, "plural": resource.plural, "listKind": f"{resource.kind}List"}
    served = [
        {"name": each, "served": True, "storage": each == version, "schema": schema, "subresources": {"status": {}}}
        for each in (version, *versions)
    ]
    scope = "Namespaced" if resource.namespaced else "Cluster"
    spec = {"group": group, "scope": scope, "names": names, "versions": served}
    body = {"metadata": {"name": f"{resource.plural}.{group}"}, "spec": spec}
    with contextlib.suppress(AlreadyExists):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
    async with asyncio.timeout(60):
        for each in (version, *versions):
            while True:
                try:
                    await client.list(dataclasses.replace(resource, api_version=f"{group}/{each}"))
                except NotFound:
                    await asyncio.sleep(0.05)
                else:
                    break
