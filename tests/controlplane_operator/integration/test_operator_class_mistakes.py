"""Invalid settings of a class do not stop the API servers of its control planes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kplane.components.names import apiserver_name
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, EVENTS
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME = "mistaken"
NO_PATH = {"rules": [{"level": "Metadata", "nonResourceURLs": ["healthz"]}]}
"""The schema accepts this policy, kube-apiserver refuses it: validateNonResourceURLs of k8s.io/apiserver."""


async def test_api_server_keeps_former_settings_while_its_class_is_invalid(field: Any) -> None:
    await field.create("ControlPlaneClass", NAME, apiServer={"extraArgs": ["--max-requests-inflight=77"]})
    await field.create("ControlPlane", NAME, classRef={"name": NAME}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", NAME, "Reconciled")

    async def up_to_date() -> dict[str, Any]:
        conditions = (await field.get("ControlPlane", NAME))["status"]["conditions"]
        return next((item for item in conditions if item["type"] == "UpToDate"), {})

    async def set_up(**api_server: Any) -> None:
        settings = {"extraArgs": None, "auditPolicy": None, **api_server}
        await field.client.patch(CONTROL_PLANE_CLASSES, NAME, {"spec": {"apiServer": settings}})

    def arguments() -> list[str]:
        [pid] = find_processes(field.state / apiserver_name(NAME))
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")

    async with Client(await field.tenant(NAME), field_manager="kplane") as tenant:
        first = find_processes(field.state / apiserver_name(NAME))
        for mistake, words in (
            ({"extraArgs": ["--no-such-flag=1"]}, "unknown flag: --no-such-flag"),
            ({"extraArgs": ["--max-requests-inflight=many"]}, 'invalid argument "many"'),
            ({"auditPolicy": NO_PATH}, "healthz"),
        ):
            await set_up(**mistake)
            condition = await field.eventually(
                up_to_date, lambda found, words=words: words in found.get("message", ""), timeout=120.0
            )
            assert condition["reason"] == "ChangeFailed"
            assert await field.reason("ControlPlane", NAME) == "Reconciled"
            assert "--max-requests-inflight=77" in arguments()
            # The operator validates flags with the new kube-apiserver before it stops the running process. A policy
            # file is only validated at the start of kube-apiserver.
            same = find_processes(field.state / apiserver_name(NAME)) == first
            assert same is ("extraArgs" in mistake)
            await tenant.create(CONFIG_MAPS, {"metadata": {"generateName": "kept-", "namespace": "default"}})

        async def warned() -> bool:
            events = (await field.client.list(EVENTS, namespace="default")).items
            return any(
                (event["involvedObject"]["name"], event["type"], event["reason"]) == (NAME, "Warning", "ChangeFailed")
                for event in events
            )

        assert await field.eventually(warned)
        await set_up(extraArgs=["--max-requests-inflight=78"])
        await field.eventually(up_to_date, lambda found: not found, timeout=120.0)
        assert "--max-requests-inflight=78" in arguments()
        await field.lets_in(tenant.config)
