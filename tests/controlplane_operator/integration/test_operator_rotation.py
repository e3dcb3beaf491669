"""CAs and ServiceAccount keys are exchanged under clients that work on, and the old ones are worth nothing then."""

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
    """Asks a control plane without a pause, one connection after the other, as an ordinary client does: what cannot be
    reached, or says that it is busy, is asked again; everything else is a failure.
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
        # A kube-apiserver that starts answers before it knows who may do what. Behind a Service nobody sees that; a
        # process is reached as soon as it listens.
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
        """Wait for an answer to a request that was not sent yet."""
        # The next one may have been on its way before.
        wanted = self.answers + 2
        while self.answers < wanted and not self.failures:  # noqa: ASYNC110 - many times a second, of many workers
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def working(*configs: ClusterConfig, until_answered: bool = True) -> AsyncIterator[list[Worker]]:
    workers = [Worker(config) for config in configs]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield workers
        if until_answered:
            # Nobody is left outside by what happened meanwhile.
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
    """Wait until the exchange is in that phase, and the control plane is ready with it."""

    async def told() -> dict[str, Any]:
        status: dict[str, Any] = (await target.get("ControlPlane", name))["status"]
        return status

    def there(status: dict[str, Any]) -> bool:
        ready = any(found["type"] == "Ready" and found["status"] == "True" for found in status["conditions"])
        return ready and status.get("rotation", {}).get("phase") == phase

    found: dict[str, Any] = await target.eventually(told, there, timeout=120.0)
    return found["rotation"]


async def secret(target: Any, name: str, which: str) -> dict[str, bytes]:
    names = {"keys": "control-plane-authorities", "controllers": f"controlplane-{name}-controllers"}
    found = await target.client.get(SECRETS, names[which], namespace=f"kplane-cp-{name}")
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def own_token(target: Any, config: ClusterConfig) -> ClusterConfig:
    """A token of a ServiceAccount that the tenant made itself."""
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
    """The server is not trusted by what was published before, and does not let in who trusts it."""
    async with Client(config, field_manager="kplane") as client:
        with pytest.raises(Unreachable) as caught:
            await client.list(NAMESPACES)
        assert caught.value.reason == "CertificateInvalid"
    async with Client(replace(config, ca_data=trusting), field_manager="kplane") as client:
        with pytest.raises(Unauthorized):
            await client.list(NAMESPACES)


async def test_old_and_new_credentials_work_until_the_old_ones_are_dropped(own_field: Any) -> None:
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
    left = await secret(own_field, "turn", "keys")
    assert (published["ca.crt"], published["sa.key"]) == (after.ca_data, left["sa.key"])
    assert published["signing-ca.crt"] == left["client-ca.crt"]
    assert set(left) == {*keys, "rotation.json"}
    assert left.pop("encryption.key") == keys["encryption.key"], "data are encrypted by it"
    assert set(left.values()).isdisjoint(keys.values())

    version = await resource_version(own_field, "turn")
    await annotate(own_field, "turn", rotate="first", finish="second")
    await own_field.create("ControlPlane", "beside", deletionPolicy="Destroy")
    await own_field.becomes("ControlPlane", "beside", "Reconciled")
    assert await resource_version(own_field, "turn") == version


async def resource_version(target: Any, name: str) -> str:
    found = await target.client.get(SECRETS, "control-plane-authorities", namespace=f"kplane-cp-{name}")
    return str(found["metadata"]["resourceVersion"])


async def test_keys_that_are_made_under_a_value_are_not_exchanged_for_it(own_field: Any) -> None:
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


async def test_an_operator_that_is_ended_in_each_phase_goes_on_where_it_was(
    mortal_field: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mode Dedicated, whose etcd trusts a CA of the control plane, and with certificates for administrators."""
    target, operator = mortal_field
    allowed: set[str] = set()

    def held(*args: Any, **named: Any) -> Rotation | None:
        following = next_rotation(*args, **named)
        return following if following is not None and following.phase in allowed else None

    # No step is taken before its turn: on a busy machine several could be over when the first of them is seen.
    monkeypatch.setattr(rotator, "next_rotation", held)
    async with operator():
        await target.create("ControlPlaneClass", "certified", auth={"model": "x509"}, deletionPolicy="Destroy")
        await target.create("ControlPlane", "lasting", mode="Dedicated", classRef={"name": "certified"})
        await target.becomes("ControlPlane", "lasting", "Reconciled")
    before, keys = await target.tenant("lasting"), await secret(target, "lasting", "keys")
    async with Client(before, field_manager="kplane") as tenant:
        await tenant.create(NAMESPACES, {"metadata": {"name": "kept"}})

    async def phase() -> str:
        kept = (await secret(target, "lasting", "keys")).get("rotation.json", b'{"phase": ""}')
        return str(json.loads(kept)["phase"])

    await annotate(target, "lasting", rotate="first", finish="first")

    async def ends_in(reached: str) -> None:
        allowed.add(reached)
        async with operator():
            await target.eventually(phase, lambda found: found == reached, timeout=120.0)
        assert await phase() == reached

    # What is to be started again after the end of an operator, the next one starts.
    async with working(before, until_answered=False):
        await ends_in("Trusting")
        await ends_in("Overlapping")
    await ends_in("Dropping")
    allowed.add("Done")
    async with operator():
        await reaches(target, "lasting", "Done")
    after, left = await target.tenant("lasting"), await secret(target, "lasting", "keys")
    await refused(before, trusting=after.ca_data)
    assert left.pop("encryption.key") == keys["encryption.key"], "data are encrypted by it"
    assert set(left.values()).isdisjoint(keys.values())
    async with Client(after, field_manager="kplane") as tenant:
        assert (await tenant.get(NAMESPACES, "kept"))["metadata"]["name"] == "kept"
