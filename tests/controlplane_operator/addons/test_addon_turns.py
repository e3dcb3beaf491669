"""Order of add-ons in a sync that lacks time for all of them, and removal of add-ons."""

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
    """Fake Installation in a slow control plane, in which every add-on succeeds except for `broken`."""

    def __init__(self, done: list[str], installed: tuple[str, ...] = ()) -> None:
        self.done = done
        self.installed = installed

    async def begin(self) -> list[str]:
        return [*self.installed]

    async def install(self, addon: str, _bundle: Any) -> list[str]:
        self.done.append(addon)
        return ["it is broken"] if addon == "broken" else []

    async def prune(self, _addon: str) -> list[str]:
        return []

    async def uninstall(self, addon: str) -> list[str]:
        self.done.append(f"-{addon}")
        return []


async def test_skipped_addon_comes_first_in_the_next_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    clock = itertools.count(step=30)
    monkeypatch.setattr(look, "Installation", lambda _client: Installed(done))
    monkeypatch.setattr(look, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    bundles = Bundles(store_of("broken", "fine"), namespace="kplane-system")
    async with Client(ClusterConfig(server="https://127.0.0.1:1"), field_manager="kplane") as client:
        failures = await AddonSync(client, bundles=bundles, facts=FACTS).all(["broken", "fine"], last=[])
        assert list(failures) == ["fine", "broken"]
        assert "others took too long" in failures["fine"].message
        assert done == ["broken"]
        await AddonSync(client, bundles=bundles, facts=FACTS).all(["broken", "fine"], last=list(failures))
        assert done == ["broken", "fine"]


@pytest.mark.parametrize(
    ("wanted", "done", "said"),
    [
        # `netwrk` is a typo of `network`: the installed `network` stays.
        (["fine", "netwrk"], ["fine"], "network, which the class does not list any more, stays until then"),
        (["fine"], ["fine", "-network"], ""),
        ([], ["-fine", "-network"], ""),
    ],
)
async def test_addon_stays_while_its_replacement_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, wanted: list[str], done: list[str], said: str
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(look, "Installation", lambda _client: Installed(calls, ("fine", "network")))
    bundles = Bundles(store_of("fine", "network"), namespace="kplane-system")
    async with Client(ClusterConfig(server="https://127.0.0.1:1"), field_manager="kplane") as client:
        failures = await AddonSync(client, bundles=bundles, facts=FACTS).all(wanted, last=[])
    assert calls == done
    assert [failure.message for failure in failures.values() if said not in failure.message] == []
    assert len(failures) == bool(said)


async def test_addon_is_removed_while_another_has_lost_its_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(look, "Installation", lambda _client: Installed(calls, ("fine", "network")))
    bundles = Bundles(store_of("network"), namespace="kplane-system")
    async with Client(ClusterConfig(server="https://127.0.0.1:1"), field_manager="kplane") as client:
        failures = await AddonSync(client, bundles=bundles, facts=FACTS).all(["fine"], last=[])
    assert (calls, [*failures]) == (["-network"], ["fine"])


def store_of(*names: str) -> Store:
    store = Store(CONFIG_MAPS)
    for version, name in enumerate(names, start=1):
        metadata = {"namespace": "kplane-system", "name": name, "uid": name, "resourceVersion": str(version)}
        store.apply({"metadata": metadata, "data": {"a": ONE}})
    return store
