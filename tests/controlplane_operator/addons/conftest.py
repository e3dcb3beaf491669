"""A tenant's real API server, and bundles as the management cluster would have them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kplane.api import DEFAULT_SERVICE_CIDR
from kplane.components.api_server import dns_address
from kplane.controlplane_operator.addons import installation
from kplane.controlplane_operator.addons import sync as look
from kplane.controlplane_operator.addons.builtin import TenantFacts
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.addons.kubeadm_join import ClusterFacts
from kplane.controlplane_operator.addons.sync import AddonSync
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT, bootstrap
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS

_versions = itertools.count(1)


@dataclass
class Addons:
    """What a test works with: the tenant as its administrator, and the add-ons of its class."""

    client: Client
    facts: TenantFacts
    store: Store = field(default_factory=lambda: Store(CONFIG_MAPS))
    wanted: list[str] = field(default_factory=list)
    look: AddonSync | None = None

    def bundle(self, name: str, **entries: str) -> None:
        """Have a bundle of this name, and the class name it."""
        version = str(next(_versions))
        metadata = {"namespace": "kplane-system", "name": name, "uid": name, "resourceVersion": version}
        self.store.apply({"metadata": metadata, "data": entries})
        if name not in self.wanted:
            self.wanted.append(name)

    async def failures(self, *, last: list[str] | None = None) -> dict[str, ConditionError]:
        """Look at the tenant once; gives what is wrong."""
        bundles = Bundles(self.store, namespace="kplane-system")
        self.look = AddonSync(self.client, bundles=bundles, facts=self.facts)
        return await self.look.all(self.wanted, last=last or [])


@pytest.fixture
async def addons(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Addons]:
    # What is to be done in one look is not excused by a busy machine: it only may take longer there.
    monkeypatch.setattr(installation, "_ADDON_SECONDS", 120.0)
    monkeypatch.setattr(installation, "_ESTABLISHED_SECONDS", 60.0)
    monkeypatch.setattr(look, "_PASS_SECONDS", 150.0)
    url, ca = tenant.administrator.server, tenant.administrator.ca_data
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="cluster-admin", controllers=CONTROLLERS_ACCOUNT)
        version = (await client.request("GET", "/version"))["gitVersion"]
        facts = ClusterFacts("acme", url, ca, version, DEFAULT_SERVICE_CIDR, dns_address(DEFAULT_SERVICE_CIDR))
        yield Addons(client, TenantFacts(external_url=url, cluster=facts))
