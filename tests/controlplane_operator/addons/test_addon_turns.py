"""In which turn add-ons are looked after where there is no time for all of them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.controlplane_operator.addons import sync as look
from kplane.controlplane_operator.addons.builtin import TenantFacts
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.addons.kubeadm_join import ClusterFacts
from kplane.controlplane_operator.addons.sync import AddonSync
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS

FACTS = TenantFacts("https://x", ClusterFacts("acme", "https://x", b"CA", "v1.36.3", None, None))
ONE = "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}"


class Installed:
    """What a slow control plane does: everything asked of it, but for the add-on `broken`."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    async def begin(self) -> list[str]:
        return []

    async def install(self, addon: str, _bundle: Any) -> list[str]:
        self.done.append(addon)
        return ["it is broken"] if addon == "broken" else []

    async def prune(self, _addon: str) -> list[str]:
        return []


async def test_an_addon_whose_turn_did_not_come_is_the_first_of_the_failed_ones_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    clock = itertools.count(step=30)
    monkeypatch.setattr(look, "Installation", lambda _client: Installed(done))
    monkeypatch.setattr(look, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    store = Store(CONFIG_MAPS)
    for version, name in enumerate(("broken", "fine"), start=1):
        metadata = {"namespace": "kplane-system", "name": name, "uid": name, "resourceVersion": str(version)}
        store.apply({"metadata": metadata, "data": {"a": ONE}})
    bundles = Bundles(store, namespace="kplane-system")
    async with Client(ClusterConfig(server="https://127.0.0.1:1")) as client:
        failures = await AddonSync(client, bundles=bundles, facts=FACTS).all(["broken", "fine"], last=[])
        assert list(failures) == ["fine", "broken"]
        assert "others took too long" in failures["fine"].message
        assert done == ["broken"]
        await AddonSync(client, bundles=bundles, facts=FACTS).all(["broken", "fine"], last=list(failures))
        assert done == ["broken", "fine"]
