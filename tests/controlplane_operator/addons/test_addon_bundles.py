"""Bundles as their authors hear of them: found by name, read once, and what is wrong in words."""

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


async def test_a_bundle_is_parsed_once_for_all_and_again_when_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = await asyncio.gather(*(bundles.find("mine") for _ in range(20)))
    assert len({id(bundle) for bundle in found}) == len(parsed) == 1
    before = bundles.version("mine")
    store.apply(config_map("mine", 2, text="kind: ["))
    assert bundles.version("mine") != before
    for _ in range(2):
        with pytest.raises(ConditionError, match="entry 'a' is no YAML") as caught:
            await bundles.find("mine")
        assert caught.value.reason == "BundleInvalid"
    assert len(parsed) == 2


async def test_only_the_operators_namespace_has_bundles() -> None:
    store = Store(CONFIG_MAPS)
    store.apply(config_map("mine", 1, namespace="default"))
    bundles = Bundles(store, namespace="kplane-system")
    assert bundles.version("mine") == ""
    with pytest.raises(ConditionError, match="no ConfigMap kplane-system/mine with label"):
        await bundles.find("mine")


async def test_an_author_is_told_of_every_name_that_does_not_work() -> None:
    store = Store(CONFIG_MAPS)
    store.apply(config_map("good", 1))
    store.apply(config_map("bad", 2, text=""))
    bundles = Bundles(store, namespace="kplane-system")
    assert await bundles.problems(["starter", "kubeadm-join", "good"]) == []
    # One of our own names is never taken from a ConfigMap, and that is not kept secret.
    store.apply(config_map("starter", 3))
    told = [failure.message for failure in await bundles.problems(["starter", "good", "bad", "missing"])]
    assert len(told) == 3
    assert "rename yours" in told[0]
    assert "no manifest" in told[1]
    assert "kplane-system/missing" in told[2]
