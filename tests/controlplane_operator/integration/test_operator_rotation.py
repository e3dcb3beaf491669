"""Rotation of CAs and ServiceAccount keys under working clients. Servers refuse the old credentials afterwards."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kplane.api.names import FINISH_ROTATION_ANNOTATION, ROTATE_ANNOTATION
from kplane.controlplane_operator.controlplanes import rotator
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.pki.rotation import Rotation, next_rotation
from kplane.provider import Client, ClusterConfig, ProviderError, Unreachable
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden, ServerError, TooManyRequests, Unauthorized

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@dataclass
class Worker:
    """Client that sends requests to a control plane in a loop, with a new client every 20 requests.

    As an ordinary client does, the worker retries on unreachable and busy servers. Other errors are failures.
    """

    config: ClusterConfig
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            async with Client(self.config, timeout_seconds=10.0, field_manager="kplane") as client:
                for _ in range(20):
                    await self._ask(client)
                    await asyncio.sleep(0.05)

    async def _ask(self, client: Client) -> None:
        try:
            await client.list(NAMESPACES)
        except (Unreachable, TooManyRequests, ServerError) as error:
            if isinstance(error, Unreachable) and error.kind == "tls":
                self.failures.append(repr(error))
        except (Unauthorized, Forbidden):
            await self._ask_when_ready(client)
        except ProviderError as error:
            self.failures.append(repr(error))
        else:
            self._note()

    async def _ask_when_ready(self, client: Client) -> None:
        # A starting kube-apiserver serves requests before it has loaded RBAC rules. A Service hides that from clients;
        # a process is reachable as soon as it listens.
        try:
            async with Client(
                ClusterConfig(self.config.server, ca_data=self.config.ca_data), field_manager="kplane"
            ) as anybody:
                await anybody.probe("/readyz")
        except ProviderError:
            return
        try:
            await client.list(NAMESPACES)
        except (Unauthorized, Forbidden) as error:
            self.failures.append(repr(error))
        except ProviderError:
            return
        else:
            self._note()

    def _note(self) -> None:
        self.answers += 1

    async def is_answered(self) -> None:
        """Wait for the response to a future request."""
        # The next response may belong to a request in flight.
        target = self.answers + 2
        while self.answers < target and not self.failures:  # noqa: ASYNC110 - many times a second, of many workers
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def working(*configs: ClusterConfig, until_answered: bool = True) -> AsyncIterator[list[Worker]]:
    workers = [Worker(config) for config in configs]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield workers
        if until_answered:
            # All workers still have access after the changes.
            for worker in workers:
                await worker.is_answered()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for worker in workers:
        assert worker.failures == []
        assert worker.answers > 0


async def annotate(target: Any, name: str, **annotations: str) -> None:
    names = {"rotate": ROTATE_ANNOTATION, "finish": FINISH_ROTATION_ANNOTATION}
    body = {"metadata": {"annotations": {names[key]: value for key, value in annotations.items()}}}
    await target.client.patch(CONTROL_PLANES, name, body)


async def reaches(target: Any, name: str, phase: str) -> dict[str, Any]:
    """Wait until the rotation is in the phase and the control plane is ready."""

    async def told() -> dict[str, Any]:
        status: dict[str, Any] = (await target.get("ControlPlane", name))["status"]
        return status

    def there(status: dict[str, Any]) -> bool:
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in status["conditions"]
        )
        return ready and status.get("rotation", {}).get("phase") == phase

    reached: dict[str, Any] = await target.eventually(told, there, timeout=120.0)
    return reached["rotation"]


async def secret(target: Any, name: str, which: str) -> dict[str, bytes]:
    names = {"keys": "control-plane-authorities", "controllers": f"controlplane-{name}-controllers"}
    obj = await target.client.get(SECRETS, names[which], namespace=f"kplane-cp-{name}")
    return {key: base64.b64decode(value) for key, value in obj["data"].items()}


async def own_token(target: Any, config: ClusterConfig) -> ClusterConfig:
    """Return credentials of a ServiceAccount that the tenant creates."""
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "robot"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "robot"}],
    }
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = "/api/v1/namespaces/default/serviceaccounts/robot/token"
    async with Client(config, field_manager="kplane") as client:
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
        await client.create(CLUSTER_ROLE_BINDINGS, binding)
        answer: Any = await client.request("POST", path, body=request)
    robot = ClusterConfig(server=config.server, ca_data=config.ca_data, token=answer["status"]["token"])
    await target.lets_in(robot)
    return robot


async def refused(config: ClusterConfig, *, trusting: bytes | None) -> None:
    """Assert that the former CA does not verify the server, and that the server refuses the former credentials."""
    async with Client(config, field_manager="kplane") as client:
        with pytest.raises(Unreachable) as caught:
            await client.list(NAMESPACES)
        assert caught.value.reason == "CertificateInvalid"
    async with Client(replace(config, ca_data=trusting), field_manager="kplane") as client:
        with pytest.raises(Unauthorized):
            await client.list(NAMESPACES)


async def test_old_and_new_credentials_work_until_rotation_is_finished(own_field: Any) -> None:
    await own_field.create("ControlPlane", "turn", deletionPolicy="Destroy")
    await own_field.becomes("ControlPlane", "turn", "Reconciled")
    before = await own_field.tenant("turn")
    controllers = await own_field.tenant("turn", secret="controllersSecretRef")
    robot = await own_token(own_field, before)
    keys = await secret(own_field, "turn", "keys")

    async with working(before, robot, controllers):
        await annotate(own_field, "turn", rotate="first")
        overlapping = await reaches(own_field, "turn", "Overlapping")
        assert overlapping["value"] == "first"
        assert overlapping["dropAt"] > overlapping["phaseStartedAt"] > ""

        async def renewed() -> ClusterConfig:
            return await own_field.tenant("turn")

        during = await own_field.eventually(renewed, lambda found: found.token != before.token)
        assert before.ca_data in during.ca_data
        assert (await secret(own_field, "turn", "controllers"))["sa.key"] != keys["sa.key"]
        async with working(during, await own_field.tenant("turn", secret="controllersSecretRef")) as workers:
            await own_field.eventually(lambda: min(worker.answers for worker in workers) > 20)

    async with working(during):
        await annotate(own_field, "turn", finish="first")
        await reaches(own_field, "turn", "Done")
    after = await own_field.tenant("turn")
    assert after.token == during.token
    assert before.ca_data not in after.ca_data
    for old in (before, robot, controllers):
        await refused(old, trusting=after.ca_data)
    async with working(after, await own_field.tenant("turn", secret="controllersSecretRef")) as workers:
        await own_field.eventually(lambda: min(worker.answers for worker in workers) > 10)

    published = await secret(own_field, "turn", "controllers")
    rotated_keys = await secret(own_field, "turn", "keys")
    assert (published["ca.crt"], published["sa.key"]) == (after.ca_data, rotated_keys["sa.key"])
    assert published["signing-ca.crt"] == rotated_keys["client-ca.crt"]
    assert set(rotated_keys) == {*keys, "rotation.json"}
    assert rotated_keys.pop("encryption.key") == keys["encryption.key"], "data are encrypted by it"
    assert set(rotated_keys.values()).isdisjoint(keys.values())

    version = await resource_version(own_field, "turn")
    await annotate(own_field, "turn", rotate="first", finish="second")
    await own_field.create("ControlPlane", "beside", deletionPolicy="Destroy")
    await own_field.becomes("ControlPlane", "beside", "Reconciled")
    assert await resource_version(own_field, "turn") == version


async def resource_version(target: Any, name: str) -> str:
    obj = await target.client.get(SECRETS, "control-plane-authorities", namespace=f"kplane-cp-{name}")
    return str(obj["metadata"]["resourceVersion"])


async def test_new_control_plane_with_rotate_annotation_is_not_rotated(own_field: Any) -> None:
    metadata = {"name": "fresh", "annotations": {ROTATE_ANNOTATION: "first"}}
    await own_field.client.create(CONTROL_PLANES, {"metadata": metadata, "spec": {"deletionPolicy": "Destroy"}})
    await own_field.becomes("ControlPlane", "fresh", "Reconciled")
    assert (await reaches(own_field, "fresh", "Done"))["value"] == "first"
    keys = await secret(own_field, "fresh", "keys")
    assert not any(name.startswith("next-") for name in keys)

    await annotate(own_field, "fresh", rotate="x" * 64)

    async def told() -> str:
        return str(await own_field.reason("ControlPlane", "fresh", "Supported"))

    await own_field.eventually(told, lambda reason: reason == "NotSupported")
    assert await secret(own_field, "fresh", "keys") == keys


async def test_rotation_continues_after_operator_restart_in_each_phase(
    mortal_field: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane is Dedicated, so that its etcd trusts its CA, and its administrator has a certificate."""
    target, operator = mortal_field
    allowed: set[str] = set()

    def held(*args: Any, **named: Any) -> Rotation | None:
        following = next_rotation(*args, **named)
        return following if following is not None and following.phase in allowed else None

    # Allow phases step by step: on a busy machine, several could pass before the test observes the first.
    monkeypatch.setattr(rotator, "next_rotation", held)
    async with operator():
        await target.create("ControlPlaneClass", "certified", auth={"model": "x509"}, deletionPolicy="Destroy")
        await target.create("ControlPlane", "lasting", mode="Dedicated", classRef={"name": "certified"})
        await target.becomes("ControlPlane", "lasting", "Reconciled")
    before, keys = await target.tenant("lasting"), await secret(target, "lasting", "keys")
    async with Client(before, field_manager="kplane") as tenant:
        await tenant.create(NAMESPACES, {"metadata": {"name": "kept"}})

    async def phase() -> str:
        rotation = (await secret(target, "lasting", "keys")).get("rotation.json", b'{"phase": ""}')
        return str(json.loads(rotation)["phase"])

    await annotate(target, "lasting", rotate="first", finish="first")

    async def ends_in(reached: str) -> None:
        allowed.add(reached)
        async with operator():
            await target.eventually(phase, lambda found: found == reached, timeout=120.0)
        assert await phase() == reached

    # The next operator restarts the processes that an ended operator has left to restart.
    async with working(before, until_answered=False):
        await ends_in("Trusting")
        await ends_in("Overlapping")
    await ends_in("Dropping")
    allowed.add("Done")
    async with operator():
        await reaches(target, "lasting", "Done")
    after, rotated_keys = await target.tenant("lasting"), await secret(target, "lasting", "keys")
    await refused(before, trusting=after.ca_data)
    assert rotated_keys.pop("encryption.key") == keys["encryption.key"], "data are encrypted by it"
    assert set(rotated_keys.values()).isdisjoint(keys.values())
    async with Client(after, field_manager="kplane") as tenant:
        assert (await tenant.get(NAMESPACES, "kept"))["metadata"]["name"] == "kept"
