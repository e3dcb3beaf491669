"""Fake nodes without kwok: annotations, arguments and files of kwok, and Node objects."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.api.names import FAKE_NODES_ANNOTATION
from kplane.embedded.__main__ import main
from kplane.embedded.errors import FakeNodesInvalid
from kplane.embedded.fake_nodes import wanted_nodes
from kplane.embedded.handle import Handle
from kplane.embedded.kwok import have_nodes, kwok_component, release_leases
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import LEASES, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from kplane.workloads import Address, Component

_CONFIG = ClusterConfig(server="https://127.0.0.1:1", token="first")


def _control_plane(value: str | None, **spec: Any) -> dict[str, Any]:
    annotations = {FAKE_NODES_ANNOTATION: value} if value is not None else {}
    return {"metadata": {"name": "acme", "annotations": annotations}, "spec": spec}


@pytest.mark.parametrize(("value", "count"), [(None, 0), ("0", 0), ("3", 3), ("9999", 9999)])
def test_wanted_nodes_returns_number_of_annotation(value: str | None, count: int) -> None:
    assert wanted_nodes(_control_plane(value)) == count


@pytest.mark.parametrize("value", ["", "-1", "3.5", "many", "10000", "٣", "3\n"])
def test_wanted_nodes_refuses_invalid_annotation(value: str) -> None:
    with pytest.raises(FakeNodesInvalid, match="use a number from 0 to 9999"):
        wanted_nodes(_control_plane(value))


def test_wanted_nodes_refuses_adopted_control_plane() -> None:
    adopted = {"endpointRef": {"name": "acme"}}
    with pytest.raises(FakeNodesInvalid, match="adopted"):
        wanted_nodes(_control_plane("3", **adopted))
    assert wanted_nodes(_control_plane("0", **adopted)) == 0


def _component(config: ClusterConfig = _CONFIG) -> Component:
    return kwok_component("acme", program=Path("/bin/kwok"), address=Address("127.0.0.1", {"http": 7}), config=config)


def test_kwok_listens_locally_and_manages_annotated_nodes() -> None:
    component = _component()
    assert "--server-address=127.0.0.1:7" in component.args
    assert "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in component.args
    assert not any("node-port" in argument or "manage-all-nodes" in argument for argument in component.args)
    kubeconfig = yaml.safe_load(component.files["kubeconfig"].content)
    assert kubeconfig["users"][0]["user"] == {"tokenFile": "token"}


def test_renewed_token_is_reloaded_without_restart() -> None:
    renewed = _component(ClusterConfig(server=_CONFIG.server, token="second"))
    changed = {name for name, file in renewed.files.items() if file != _component().files[name]}
    assert changed == {"token"}
    assert renewed.files["token"].reloaded


def test_kwok_configuration_has_stages_of_nodes_and_pods() -> None:
    (name,) = [name for name in _component().files if name.endswith(".yaml")]
    configuration, *stages = yaml.safe_load_all(_component().files[name].content)
    assert configuration["options"]["enableDebuggingHandlers"] is False
    kinds = [stage["spec"]["resourceRef"]["kind"] for stage in stages]
    assert kinds == ["Node", "Pod", "Pod", "Pod"]


def test_kwok_without_operators_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--directory", str(tmp_path), "--kwok", "/bin/kwok", "--no-operators"])
    assert exit_info.value.code == 2
    assert "--kwok needs the operators" in capsys.readouterr().err


async def _nodes(client: Client) -> list[str]:
    return [node["metadata"]["name"] for node in (await client.list(NODES)).items]


@pytest.mark.integration
async def test_have_nodes_creates_and_deletes_nodes_to_match_count(api_server: Handle, eventually: Any) -> None:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        await client.create(NODES, {"metadata": {"name": "of-a-user", "labels": {"type": "kwok"}}})
        await client.create(NAMESPACES, {"metadata": {"name": "on-nodes"}})
        try:
            for _ in range(2):
                await have_nodes(client, 3)
                assert await _nodes(client) == ["fake-node-1", "fake-node-2", "fake-node-3", "of-a-user"]
            node = await client.get(NODES, "fake-node-2")
            assert node["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"

            # Without kwok, Pods of a deleted node would never end.
            await eventually(lambda: client.exists(SERVICE_ACCOUNTS, "default", namespace="on-nodes"))
            for number in (1, 3):
                spec = {"nodeName": f"fake-node-{number}", "containers": [{"name": "main", "image": "example"}]}
                pod = {"metadata": {"name": f"on-{number}", "namespace": "on-nodes"}, "spec": spec}
                await client.create(PODS, pod)
            await have_nodes(client, 1)
            assert await _nodes(client) == ["fake-node-1", "of-a-user"]
            pods = (await client.list(PODS, namespace="on-nodes")).items
            assert [item["metadata"]["name"] for item in pods] == ["on-1"]

            # A Lease of a stopped kwok: the next kwok would wait until the Lease expires.
            lease = {"metadata": {"name": "fake-node-1", "namespace": "kube-node-lease"}}
            await client.create(LEASES, lease)
            await release_leases(client, 2)
            assert not await client.exists(LEASES, "fake-node-1", namespace="kube-node-lease")
        finally:
            await have_nodes(client, 0)
            with contextlib.suppress(NotFound):
                await client.delete(NODES, "of-a-user")
            await client.delete(NAMESPACES, "on-nodes")
        assert await _nodes(client) == []
