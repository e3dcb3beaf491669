"""Rights of mcm on the management cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.errors import Forbidden
from kplane.provider.providers.kplane.registration import REGISTRATIONS

pytestmark = pytest.mark.integration

Eventually = Callable[..., Any]
Fleet = Any


async def test_mcm_may_only_get_named_secrets_and_patch_the_status(
    api_server: Any, fleet: Fleet, kubeconfig: str, eventually: Eventually
) -> None:
    name = await fleet.register("a", {"kubeconfig": kubeconfig.encode()}, server="https://127.0.0.1:1")
    await fleet.client.create(SECRETS, {"metadata": {"name": "other", "namespace": fleet.namespace}})
    async with Client(ClusterConfig.load(api_server.mcm_kubeconfig), field_manager="kplane") as mcm:
        before = await fleet.client.get(REGISTRATIONS, name)
        # A binding takes effect some milliseconds after it was written.
        assert (await eventually(lambda: mcm.get(SECRETS, "a", namespace=fleet.namespace)))["data"]
        for attempt in (
            mcm.get(SECRETS, "other", namespace=fleet.namespace),
            mcm.list(SECRETS, namespace=fleet.namespace),
            mcm.list(SECRETS),
            mcm.delete(SECRETS, "a", namespace=fleet.namespace),
            mcm.delete(REGISTRATIONS, name),
            mcm.patch(REGISTRATIONS, name, {"spec": {"services": []}}),
            mcm.replace(REGISTRATIONS, before, subresource="status"),
            mcm.list(NAMESPACES),
        ):
            with pytest.raises(Forbidden):
                await attempt
        changes = {"spec": {"services": []}, "metadata": {"labels": {"a": "b"}, "finalizers": ["a.test/b"]}}
        body = {**changes, "status": {"instance": {"controlPlaneUID": "uid-1"}}}
        after = await mcm.patch(REGISTRATIONS, name, body, subresource="status")
        assert after["status"] == before["status"] | body["status"]
        assert after["spec"] == before["spec"]
        assert {"labels", "finalizers"}.isdisjoint(after["metadata"])
