"""Custom kinds for tests, with objects of any content."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from kplane.provider import AlreadyExists, Client, NotFound, Resource
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS


async def install(client: Client, resource: Resource, *versions: str) -> None:
    """Install the CRD of a kind with the version of `resource` and `versions`, and wait until it is served."""
    group, version = resource.api_version.split("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": resource.kind, "plural": resource.plural, "listKind": f"{resource.kind}List"}
    served = [
        {
            "name": served_version,
            "served": True,
            "storage": served_version == version,
            "schema": schema,
            "subresources": {"status": {}},
        }
        for served_version in (version, *versions)
    ]
    scope = "Namespaced" if resource.namespaced else "Cluster"
    spec = {"group": group, "scope": scope, "names": names, "versions": served}
    body = {"metadata": {"name": f"{resource.plural}.{group}"}, "spec": spec}
    with contextlib.suppress(AlreadyExists):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
    async with asyncio.timeout(60):
        for served_version in (version, *versions):
            while True:
                try:
                    await client.list(dataclasses.replace(resource, api_version=f"{group}/{served_version}"))
                except NotFound:
                    await asyncio.sleep(0.05)
                else:
                    break
