"""Bundles: lookup by name, parsing once per version, and error messages for their authors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider.client.resources import CONFIG_MAPS

GOOD = "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}"


def config_map(name: str, version: int, *, namespace: str = "kplane-system", text: str = GOOD) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "data": {"a": text}}


async def test_bundle_is_parsed_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from kplane.controlplane_operator.addons import bundles as module

    parsed = []
    read_bundle = module.read_bundle

    def counting(data: Any) -> Any:
        parsed.append(data)
        return read_bundle(data)

    monkeypatch.setattr(module, "read_bundle", counting)
    store = Store(CONFIG_MAPS)
    store.apply(config_map("mine", 1))
    bundles = Bundles(store, namespace="kplane-system")
    results = await asyncio.gather(*(bundles.find("mine") for _ in range(20)))
    assert len({id(bundle) for bundle in results}) == len(parsed) == 1
    before = bundles.version("mine")
    store.apply(config_map("mine", 2, text="kind: ["))
    assert bundles.version("mine") != before
    for _ in range(2):
        with pytest.raises(ConditionError, match="entry 'a' is no YAML") as caught:
            await bundles.find("mine")
        assert caught.value.reason == "BundleInvalid"
    assert len(parsed) == 2


async def test_bundles_are_read_from_namespace_of_operator_only() -> None:
    store = Store(CONFIG_MAPS)
    store.apply(config_map("mine", 1, namespace="default"))
    bundles = Bundles(store, namespace="kplane-system")
    assert bundles.version("mine") == ""
    with pytest.raises(ConditionError, match="no ConfigMap kplane-system/mine with label"):
        await bundles.find("mine")


async def test_problems_name_every_unusable_bundle() -> None:
    store = Store(CONFIG_MAPS)
    store.apply(config_map("good", 1))
    store.apply(config_map("bad", 2, text=""))
    bundles = Bundles(store, namespace="kplane-system")
    assert await bundles.problems(["starter", "kubeadm-join", "good"]) == []
    # A ConfigMap never replaces a built-in bundle, and its author gets an error message.
    store.apply(config_map("starter", 3))
    messages = [failure.message for failure in await bundles.problems(["starter", "good", "bad", "missing"])]
    assert len(messages) == 3
    assert "rename yours" in messages[0]
    assert "no manifest" in messages[1]
    assert "kplane-system/missing" in messages[2]
