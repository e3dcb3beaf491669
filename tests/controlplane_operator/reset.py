"""Puts a running API server back to what it was, in etcd: its caches follow, and no process starts."""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any

from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace
from kplane.provider import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    Client,
    NotFound,
    ProviderError,
)
from kplane.workloads import run_program

Eventually = Callable[..., Awaitable[Any]]

_ITS_OWN = frozenset({"leases", "masterleases", "peerserverleases", "events"})
"""The API server writes these all the time, most of them with an etcd lease."""
_OPERATIONS = 100
"""In one transaction. etcd takes 128 at most."""
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_numbers = itertools.count(1)


class Template:
    """The keys below a prefix as they once were."""

    def __init__(self, keyspace: Keyspace, *, prefix: str) -> None:
        self._keyspace = keyspace
        self._prefix = prefix
        self._keys: dict[bytes, bytes] = {}

    async def take(self) -> None:
        """Keep the keys as they are now."""
        self._keys = await self._read()

    async def restore(self, client: Client, *, eventually: Eventually) -> None:
        """Restore the keys, and wait until the API server acts on them. `client` is its administrator."""
        found = await self._read()
        gone = [key for key in found if key not in self._keys]
        operations = [f"del -- {_quoted(key)}" for key in gone]
        operations += [
            f"put -- {_quoted(key)} {_quoted(value)}" for key, value in self._keys.items() if found.get(key) != value
        ]
        for batch in _batches(operations):
            await self._etcdctl("txn", stdin="\n".join(("", *batch, "", "", "")))
        await self._served(client, gone=[key.decode().split("/") for key in gone], eventually=eventually)

    async def _served(self, client: Client, *, gone: list[list[str]], eventually: Eventually) -> None:
        """Wait for the parts of the API server that follow its objects by watches of their own."""
        for *_, kind, name in gone:
            if kind == NAMESPACES.plural:
                await eventually(lambda name=name: _is_unknown(client, namespace=name))
            elif kind == CUSTOM_RESOURCE_DEFINITIONS.plural:
                plural, _, group = name.partition(".")
                await eventually(lambda group=group, plural=plural: _is_not_served(client, group=group, plural=plural))
        # It hears of bindings in their order: once it knows the last one, it has forgotten those that are gone.
        user = f"reset-{next(_numbers)}"
        body = {
            "metadata": {"name": "reset"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        await client.create(CLUSTER_ROLE_BINDINGS, body)
        await eventually(lambda: _may(client, user))
        await client.delete(CLUSTER_ROLE_BINDINGS, "reset")
        await eventually(lambda: _may(client, user), lambda allowed: not allowed)

    async def _read(self) -> dict[bytes, bytes]:
        answer = json.loads(await self._etcdctl("get", self._prefix, "--prefix", "-w", "json"))
        pairs = {b64decode(pair["key"]): b64decode(pair.get("value", "")) for pair in answer.get("kvs", ())}
        return {key: value for key, value in pairs.items() if not _ITS_OWN & set(key.decode().split("/"))}

    async def _etcdctl(self, *args: str, stdin: str = "") -> bytes:
        directory = self._keyspace.credentials
        connection = (
            f"--endpoints={','.join(self._keyspace.endpoints)}",
            f"--cacert={directory}/ca.crt",
            f"--cert={directory}/client.crt",
            f"--key={directory}/client.key",
        )
        program = self._keyspace.etcdctl
        return await run_program(program, [*connection, *args], timeout_seconds=60.0, stdin=stdin.encode())


def _batches(operations: list[str]) -> list[list[str]]:
    return [operations[start : start + _OPERATIONS] for start in range(0, len(operations), _OPERATIONS)]


def _quoted(content: bytes) -> str:
    """Quote bytes as Go does."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in content) + '"'


async def _is_unknown(client: Client, *, namespace: str) -> bool:
    try:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "reset-"}}
        path = CONFIG_MAPS.path(namespace=namespace)
        await client.request("POST", path, body=body, params={"dryRun": "All"})
    except NotFound:
        return True
    except ProviderError:
        return False
    return False


async def _is_not_served(client: Client, *, group: str, plural: str) -> bool:
    try:
        await client.request("GET", f"/apis/{group}/v1/{plural}")
    except NotFound:
        return True
    return False


async def _may(client: Client, user: str) -> bool:
    spec = {"user": user, "resourceAttributes": {"verb": "delete", "resource": "namespaces"}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await client.request("POST", _REVIEWS, body=body)
    return bool(answer["status"]["allowed"])
