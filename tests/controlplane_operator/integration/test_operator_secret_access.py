"""The operator's access to Secrets and its watches of Secrets, on a real API server with the operator's identity."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kplane.api.names import CONTROL_PLANE_LABEL, GATEWAY_NAMESPACE
from kplane.controlplane_operator.secret_access import DEFAULT_SECRETS_ROLE, SecretAccess
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.secrets import OWN, SecretWatches, Watched
from kplane.controlplane_operator.watch.stores import Stores
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.client.resources import NAMESPACES, ROLE_BINDINGS, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("unguarded")]

_OWN = "kplane-system"
_CLOSED = "gateway-that-nobody-opened"


@contextlib.asynccontextmanager
async def clients(handle: Handle) -> AsyncIterator[tuple[Client, Client]]:
    """Clients of the administrator and of the operator."""
    admin = ClusterConfig.load(handle.admin_kubeconfig)
    async with (
        Client(admin, field_manager="kplane") as client,
        Client(ClusterConfig.load(handle.operator_kubeconfig), field_manager="kplane") as operator,
    ):
        yield client, operator


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def control_plane(client: Client, stores: Stores, name: str) -> AsyncIterator[str]:
    """Create the namespace of a control plane, with a Secret and without a RoleBinding, as an older operator did."""
    namespace, labels = f"kplane-cp-{name}", {CONTROL_PLANE_LABEL: name}
    stores.control_planes.apply({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {}})
    stores.namespaces.apply(await client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels}}))
    await client.create(SECRETS, {"metadata": {"name": "keys", "namespace": namespace, "labels": labels}})
    try:
        yield namespace
    finally:
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, namespace)


async def test_namespaces_of_older_installation_get_bindings_and_watches(
    api_server: Handle, eventually: Callable[..., Any]
) -> None:
    stores, listed = Stores(), asyncio.Event()
    listed.set()
    async with clients(api_server) as (admin, operator), contextlib.AsyncExitStack() as stack:
        namespaces = [await stack.enter_async_context(control_plane(admin, stores, f"old-{n}")) for n in range(3)]
        # A namespace without a binding does not delay the others.
        reference = {"name": "kubeconfig", "namespace": "kube-system"}
        closed = {"metadata": {"name": "closed", "uid": "1", "resourceVersion": "1"}}
        stores.endpoints.apply({**closed, "spec": {"credentialsSecretRef": reference}})
        access = SecretAccess(operator, stores=stores, namespace=_OWN)
        assert access.problem() == "the Secrets of namespace kplane-system were not listed yet"
        await stack.enter_async_context(running(access.run(listed=listed)))
        await eventually(lambda: {obj["metadata"]["namespace"] for obj in stores.secrets} >= set(namespaces))
        await access.synced.wait()
        assert access.problem() is None
        await eventually(lambda: access.is_lost("kube-system"))
        for namespace in namespaces:
            await access.open(namespace)
            role_binding = await admin.get(ROLE_BINDINGS, DEFAULT_SECRETS_ROLE, namespace=namespace)
            assert role_binding["subjects"][0]["name"] == "controlplane-operator"

        # The watch ends with the namespace, and its Secrets leave the store.
        await admin.delete(NAMESPACES, namespaces[0])
        stores.namespaces.remove(stores.namespaces.get(("", namespaces[0])) or {})
        await eventually(lambda: not stores.secrets.of_namespace(namespaces[0]))
        assert stores.secrets.of_namespace(namespaces[1])


async def test_identity_without_the_role_reports_forbidden(api_server: Handle, eventually: Callable[..., Any]) -> None:
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    nobody = replace(config, impersonation=Impersonation("nobody", groups=("system:authenticated",)))
    async with Client(nobody, field_manager="kplane") as client:
        access = SecretAccess(client, stores=Stores(), namespace=_OWN)
        async with running(access.run(listed=asyncio.Event())):
            await eventually(lambda: "forbidden" in (access.problem() or ""))


async def test_gateway_namespace_needs_a_binding_of_the_installation(
    api_server: Handle, eventually: Callable[..., Any]
) -> None:
    labels = {CONTROL_PLANE_LABEL: "acme"}
    metadata = {"name": "controlplane-acme", "namespace": GATEWAY_NAMESPACE, "labels": labels}
    stores = Stores()
    async with clients(api_server) as (admin, operator):
        access = SecretAccess(operator, stores=stores, namespace=_OWN, gateway_namespace=GATEWAY_NAMESPACE)
        async with running(access.run(listed=asyncio.Event())):
            await access.open(GATEWAY_NAMESPACE)
            await operator.apply(SECRETS, {"metadata": metadata})
            await eventually(lambda: stores.secrets.of_namespace(GATEWAY_NAMESPACE))
            await operator.delete(SECRETS, "controlplane-acme", namespace=GATEWAY_NAMESPACE)
            await eventually(lambda: not stores.secrets.of_namespace(GATEWAY_NAMESPACE))
        await admin.apply(NAMESPACES, {"metadata": {"name": _CLOSED}}, force=True)
        closed = SecretAccess(operator, stores=stores, namespace=_OWN, gateway_namespace=_CLOSED)
        async with running(closed.run(listed=asyncio.Event())):
            with pytest.raises(
                ConditionError, match=f"--namespace={_CLOSED} --clusterrole=kplane-controlplane-operato"
            ):
                await closed.open(_CLOSED)


async def test_stopped_namespace_watch_drops_only_its_own_secrets(
    api_server: Handle, eventually: Callable[..., Any]
) -> None:
    stores = Stores()
    async with clients(api_server) as (admin, _), contextlib.AsyncExitStack() as stack:
        first = Watched(await stack.enter_async_context(control_plane(admin, stores, "sleepy")), OWN)
        second = Watched(await stack.enter_async_context(control_plane(admin, stores, "wakeful")), OWN)
        watches = SecretWatches(admin, {OWN: stores.secrets})
        async with running(watches.run()):
            for watched in (first, second):
                await watches.known(watched)
            await watches.stop(first)
            assert not stores.secrets.of_namespace(first.namespace)
            assert not watches.is_known(first)
            assert [obj["metadata"]["name"] for obj in stores.secrets] == ["keys"]
            await watches.known(first)
            await eventually(lambda: stores.secrets.of_namespace(first.namespace))
