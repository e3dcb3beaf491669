"""A tenant's real API server, and bundles as the store of the management cluster holds them."""

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
    """A tenant, accessed as its administrator, and the add-ons of its class."""

    client: Client
    facts: TenantFacts
    store: Store = field(default_factory=lambda: Store(CONFIG_MAPS))
    wanted: list[str] = field(default_factory=list)
    look: AddonSync | None = None

    def bundle(self, name: str, **entries: str) -> None:
        """Create or update a bundle, and list its name in the class."""
        version = str(next(_versions))
        metadata = {"namespace": "kplane-system", "name": name, "uid": name, "resourceVersion": version}
        self.store.apply({"metadata": metadata, "data": entries})
        if name not in self.wanted:
            self.wanted.append(name)

    async def failures(self, *, last: list[str] | None = None) -> dict[str, ConditionError]:
        """Sync the add-ons of the tenant once; return the failure of each failed add-on."""
        bundles = Bundles(self.store, namespace="kplane-system")
        self.look = AddonSync(self.client, bundles=bundles, facts=self.facts)
        return await self.look.all(self.wanted, last=last or [])


@pytest.fixture
async def addons(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Addons]:
    # A single sync must do all its work on a busy machine too. Only its time limits are longer here.
    monkeypatch.setattr(installation, "_ADDON_SECONDS", 120.0)
    monkeypatch.setattr(installation, "_ESTABLISHED_SECONDS", 60.0)
    monkeypatch.setattr(look, "_PASS_SECONDS", 150.0)
    url, ca = tenant.administrator.server, tenant.administrator.ca_data
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="cluster-admin", controllers=CONTROLLERS_ACCOUNT)
        version = (await client.request("GET", "/version"))["gitVersion"]
        facts = ClusterFacts("acme", url, ca, version, DEFAULT_SERVICE_CIDR, dns_address(DEFAULT_SERVICE_CIDR))
        yield Addons(client, TenantFacts(external_url=url, cluster=facts))
