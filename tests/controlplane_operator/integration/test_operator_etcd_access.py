"""The operator repairs the access control of the shared etcd while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.controlplane_operator.shared_etcd import access_control
from kplane.data import Permission

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_disabled_etcd_auth_and_widened_permissions_are_repaired(
    field: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "_PERIOD_SECONDS", 0.5)
    await field.create("ControlPlane", "guarded", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "guarded", "Reconciled")
    user = f"cp-{(await field.get('ControlPlane', 'guarded'))['metadata']['uid']}"
    async with field.handle.tenants_etcd.client() as etcd:
        permissions = await etcd.access.permissions_of(user)
        assert permissions == {Permission.below("/clusters/guarded/")}
        await etcd.access.grant_permission(user, Permission.everything())
        await etcd.access.grant_role(user, "root")
        await etcd.access.disable()

        async def rights() -> Any:
            access = etcd.access
            return (await access.status()).enabled, await access.roles_of(user), await access.permissions_of(user)

        # The operator started before the patch of the period, so its next check may be up to 15 s away.
        await field.eventually(rights, lambda found: found == (True, (user,), permissions))
