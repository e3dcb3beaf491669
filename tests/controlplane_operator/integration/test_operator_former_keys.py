"""A recreated control plane shares no keys with the former control plane of its name."""

from __future__ import annotations

import contextlib

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.embedded.handle import Handle
from kplane.provider import Cache, Client, ClusterConfig, NotFound
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

_NAMESPACE = "kplane-cp-anew"


def control_plane(uid: str) -> ControlPlane:
    return ControlPlane.model_validate({"metadata": {"name": "anew", "uid": uid}, "spec": {}})


async def no_data(_: ControlPlane) -> bool:
    return False


async def unprotect(client: Client) -> None:
    body = {"metadata": {"finalizers": None}}
    await client.patch(SECRETS, "control-plane-authorities", body, namespace=_NAMESPACE)


async def test_deleted_keys_in_a_stale_cache_are_not_reused(api_server: Handle) -> None:
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    # The cache observes the writes of the operator's client, so a user has another client.
    async with Client(config, field_manager="kplane") as client, Client(config, field_manager="user") as user:
        events = Events(client)
        stores = Stores()
        context = OperatorContext(
            client=client,
            stores=stores,
            triggers=Triggers(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, Cache(client), shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(client, stores=stores, namespace="kplane-system"),
        )
        keys = TenantKeys(context)
        await client.create(NAMESPACES, {"metadata": {"name": _NAMESPACE}})
        try:
            former = await keys.authorities(control_plane("former"), has_data=no_data)

            # The Secret is gone, and the cache has not observed the deletion.
            await unprotect(user)
            with contextlib.suppress(NotFound):  # the garbage collector may have been first
                await user.delete(SECRETS, "control-plane-authorities", namespace=_NAMESPACE)
            assert stores.secrets.of_namespace(_NAMESPACE)
            anew = await keys.authorities(control_plane("anew"), has_data=no_data)
            assert anew.client.certificate != former.client.certificate
            assert anew.service_account_key != former.service_account_key
        finally:
            await unprotect(user)
            await client.delete(NAMESPACES, _NAMESPACE)
