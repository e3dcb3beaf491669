"""Bootstrap of a control plane whose administrator role is missing. A fake API server stores bindings."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kplane.controlplane_operator.errors import RoleMissing
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, Subject, bootstrap
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES

_CERTIFICATE = Subject("User", "kplane:admin:uid")
_CONTROLLERS = Subject("User", "controllers")


class FakeTenant:
    """Fake API server: stores ClusterRoleBindings, has the ClusterRoles `roles`, and has all other objects."""

    def __init__(self, *roles: str) -> None:
        self.roles = set(roles)
        self.bindings: dict[str, dict[str, Any]] = {}

    async def request(self, *_: Any, **__: Any) -> Any:
        return {"rows": []}

    async def exists(self, resource: Any, name: str) -> bool:
        return name in self.roles if resource == CLUSTER_ROLES else True

    async def apply(self, resource: Any, body: dict[str, Any], **_: Any) -> None:
        if resource == CLUSTER_ROLE_BINDINGS:
            self.bindings[body["metadata"]["name"]] = body

    async def get(self, _: Any, name: str) -> dict[str, Any]:
        try:
            return self.bindings[name]
        except KeyError:
            raise NotFound.__new__(NotFound) from None

    async def delete(self, _: Any, name: str, **__: Any) -> None:
        self.bindings.pop(name, None)

    def administrator(self) -> tuple[str, str] | None:
        """Return the role and the subject of the administrator's binding."""
        binding = self.bindings.get("controlplane-admin")
        return (binding["roleRef"]["name"], binding["subjects"][0]["name"]) if binding is not None else None


async def set_up(tenant: FakeTenant, admin: Subject, role: str, *, published: bool = True) -> None:
    client = cast("Client", tenant)
    await bootstrap(client, admin=admin, admin_role=role, controllers=_CONTROLLERS, published=published)


@pytest.mark.parametrize("admin", [_CERTIFICATE, ADMIN_ACCOUNT], ids=["same subject", "other auth.model"])
async def test_published_administrator_keeps_former_role_until_new_exists(admin: Subject) -> None:
    tenant = FakeTenant("edit")
    await set_up(tenant, _CERTIFICATE, "edit")
    with pytest.raises(RoleMissing, match="keeps ClusterRole edit until then"):
        await set_up(tenant, admin, "nosuchrole")
    assert tenant.administrator() == ("edit", admin.name)
    tenant.roles.add("nosuchrole")
    await set_up(tenant, admin, "nosuchrole")
    assert tenant.administrator() == ("nosuchrole", admin.name)


async def test_unpublished_control_plane_loses_the_binding_of_adopted_data() -> None:
    tenant = FakeTenant("edit")
    await set_up(tenant, _CERTIFICATE, "edit")
    with pytest.raises(RoleMissing):
        await set_up(tenant, ADMIN_ACCOUNT, "nosuchrole", published=False)
    assert tenant.administrator() is None
