"""The operator puts the access control of the shared etcd right while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.controlplane_operator.shared_etcd import access_control
from kplane.data import Permission

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_access_control_that_was_turned_off_and_rights_that_were_widened_are_put_right(
    field: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "_PERIOD_SECONDS", 0.5)
    await field.create("ControlPlane", "guarded", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "guarded", "Reconciled")
    user = f"cp-{(await field.get('ControlPlane', 'guarded'))['metadata']['uid']}"
    async with field.handle.tenants_etcd.client() as etcd:
        own = await etcd.access.permissions_of(user)
        assert own == {Permission.below("/clusters/guarded/")}
        await etcd.access.grant_permission(user, Permission.everything())
        await etcd.access.grant_role(user, "root")
        await etcd.access.disable()

        async def rights() -> Any:
            access = etcd.access
            return (await access.status()).enabled, await access.roles_of(user), await access.permissions_of(user)

        # The operator's first look may be up to 15 s away: it began before this test.
        await field.eventually(rights, lambda found: found == (True, (user,), own))
