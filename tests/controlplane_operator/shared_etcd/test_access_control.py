"""The operator checks access control of the shared etcd periodically, and repairs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kplane.controlplane_operator.errors import KeyspaceError, PrefixNotOwned
from kplane.controlplane_operator.shared_etcd import access_control
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.access_control import AccessControl
from kplane.data import Client, Delete, Owner, Permission, PermissionDenied, owner_key

pytestmark = pytest.mark.integration

OWN = Permission.below("/clusters/a/")


async def grant(control: AccessControl, user: str) -> None:
    prefix, owner = f"/clusters/{user}/", Owner(f"uid-of-{user}", user)
    await control._etcd.keyspace.claim(prefix, owner=owner, known=True)
    await control.grant(user, prefix=prefix, owner=owner)


@pytest.fixture
async def control(shared_etcd: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AccessControl]:
    """AccessControl of an operator with checks every 0.1 s, after grants to tenants `a` and `b`."""
    monkeypatch.setattr(access_control, "_PERIOD_SECONDS", 0.1)
    etcd = SharedEtcd(shared_etcd.url)
    etcd.use(shared_etcd.keyspace.credentials, authority=shared_etcd.authority)
    control = AccessControl(etcd)
    for user in ("a", "b"):
        await grant(control, user)
    running = asyncio.create_task(control.run())
    yield control
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await etcd.close()


async def _spoil(root: Client, how: str) -> None:
    access = root.access
    match how:
        case "access control is off":
            await root.access.disable()
        case "the role is gone":
            await access.delete_role("a")
        case "the user is gone":
            await access.delete_user("a")
        case "both are gone while access control is off":
            await root.access.disable()
            await access.delete_role("a")
            await access.delete_user("a")
        case "the user lost its role":
            await access.revoke_role("a", "a")
        case "the role lost its permission":
            await access.revoke_permission("a", OWN)
        case "the role reads only":
            await access.grant_permission("a", Permission.below("/clusters/a/", kind="read"))
        case "the role reads a neighbour":
            await access.grant_permission("a", Permission.below("/clusters/b/", kind="read"))
        case "the role reads everything":
            await access.grant_permission("a", Permission.everything())
        case "the user has the neighbour's role":
            await access.grant_role("a", "b")
        case _:
            await access.grant_role("a", "root")


async def test_forgotten_user_is_not_repaired_until_granted_again(
    shared_etcd: Any, control: AccessControl, eventually: Any
) -> None:
    """The user's control plane is paused, and an administrator may have revoked permissions on purpose."""
    async with shared_etcd.client("root") as root:
        control.forget("a")
        await root.access.revoke_permission("a", OWN)
        await root.access.revoke_permission("b", Permission.below("/clusters/b/"))
        await eventually(lambda: root.access.permissions_of("b"), bool, timeout=20.0)
        assert not await root.access.permissions_of("a")

        await grant(control, "a")
        assert await root.access.permissions_of("a") == {OWN}


@pytest.mark.parametrize(
    "how",
    [
        "access control is off",
        "the role is gone",
        "the user is gone",
        "both are gone while access control is off",
        "the user lost its role",
        "the role lost its permission",
        "the role reads only",
        "the role reads a neighbour",
        "the role reads everything",
        "the user has the neighbour's role",
        "the user has root's role",
    ],
)
async def test_changed_permissions_are_repaired_by_running_operator(
    shared_etcd: Any, control: AccessControl, eventually: Any, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with shared_etcd.client("root") as root, shared_etcd.client("a") as tenant:
        await tenant.put(b"/clusters/a/key", b"")
        await _spoil(root, how)

        async def rights() -> tuple[bool, Any, Any]:
            access = root.access
            return (await access.status()).enabled, await access.roles_of("a"), await access.permissions_of("a")

        await eventually(rights, lambda found: found == (True, ("a",), {OWN}), timeout=20.0)
        assert await tenant.count("/clusters/a/") == 1
        await tenant.put(b"/clusters/a/key", b"")
        for foreign in (b"/clusters/b/key", b"/registry/key"):
            with pytest.raises(PermissionDenied):
                await tenant.get(foreign)

    async def told() -> bool:
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return any("turned it on" in text or "user a of the shared etcd had other rights" in text for text in warnings)

    await eventually(told)


async def test_read_only_user_stays_read_only_until_next_grant(
    shared_etcd: Any, control: AccessControl, eventually: Any
) -> None:
    own, owner = {"prefix": "/clusters/a/"}, Owner("uid-of-a", "a")
    async with shared_etcd.client("root") as root, shared_etcd.client("a") as tenant:
        await tenant.put(b"/clusters/a/key", b"")
        for _ in range(2):
            await control.grant("a", **own, owner=owner, read_only=True)
            with pytest.raises(PermissionDenied):
                await tenant.put(b"/clusters/a/key", b"late")
            assert await tenant.count("/clusters/a/") == 1
            # Another operator that has not learned of the read-only grant would do this.
            await control._etcd.keyspace.grant("a", **own)
        await eventually(
            lambda: root.access.permissions_of("a"),
            lambda found: found == {Permission.below("/clusters/a/", kind="read")},
            timeout=20.0,
        )
        await control.grant("a", **own, owner=owner)
        await tenant.put(b"/clusters/a/key", b"")
        await control.check()
        assert await root.access.permissions_of("a") == {OWN}


async def test_valid_permissions_cause_few_calls_and_no_writes(
    shared_etcd: Any, control: AccessControl, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    keyspace = control._etcd.keyspace
    granted: list[str] = []
    repair = keyspace.grant

    async def counted(user: str, *, prefix: str, read_only: bool) -> bool:
        granted.append(user)
        return await repair(user, prefix=prefix, read_only=read_only)

    monkeypatch.setattr(keyspace, "grant", counted)
    await control.check()
    await control.check()
    before = await keyspace.access_revision()
    granted.clear()
    for _ in range(access_control._FULL_EVERY):
        await control.check()
    # etcd reports no change. Users are still checked once, or twice because `run` checks beside this test.
    # A check of `run` may have begun without a call so far.
    await eventually(lambda: set(granted), lambda found: found == {"a", "b"})
    assert len(granted) <= 4
    assert await keyspace.access_revision() == before


async def test_revoked_user_is_not_granted_again_by_a_check(shared_etcd: Any, control: AccessControl) -> None:
    async with shared_etcd.client("root") as root:
        for _ in range(20):
            # Because of this change each check visits all users, while user `a` is revoked.
            await root.access.add_role("other")
            await asyncio.gather(control.check(), control.revoke("a"), control.check())
            assert await root.access.roles_of("a") is None
            assert await root.access.permissions_of("a") is None
            await root.access.delete_role("other")
            await control.check()
            assert await root.access.roles_of("a") is None
            await grant(control, "a")


async def test_failed_check_is_reported_until_it_succeeds(
    shared_etcd: Any, control: AccessControl, eventually: Any
) -> None:
    etcd = control._etcd
    async with shared_etcd.client("stranger"):
        pass
    etcd.use(shared_etcd.directory / "stranger", authority=shared_etcd.authority)

    async def problem() -> str | None:
        return control.problem

    message = await eventually(problem)
    assert message.startswith(
        "failed to check the access control of the shared etcd: failed to call AuthStatus of etcd"
    )
    with pytest.raises(KeyspaceError):
        await control.check()
    etcd.use(shared_etcd.keyspace.credentials, authority=shared_etcd.authority)
    await eventually(problem, lambda found: found is None)


async def test_check_without_granted_users_makes_no_call() -> None:
    # The SharedEtcd has no credentials yet: a call would raise KeyspaceError.
    await AccessControl(SharedEtcd("https://127.0.0.1:1")).check()


NAMESAKE = Owner("uid-of-a-namesake", "a")


async def test_user_is_revoked_after_its_prefix_changes_owner(shared_etcd: Any, control: AccessControl) -> None:
    """As after a restore of etcd to a time before the creation of the control plane."""
    async with shared_etcd.client("root") as root:
        former = Owner("uid-of-a", "a")
        await control._etcd.keyspace.take_over("/clusters/a/", former=former, owner=NAMESAKE)
        await root.access.add_role("other")  # so that the check looks at all users
        await control.check()
        assert await root.access.roles_of("a") is None
        assert not control.is_granted("a")
        assert await root.access.permissions_of("b") == {Permission.below("/clusters/b/")}
        with pytest.raises(PrefixNotOwned, match="uid-of-a-namesake"):
            await control.grant("a", prefix="/clusters/a/", owner=former)
        assert await root.access.roles_of("a") is None


async def test_user_of_unowned_prefix_is_unchanged_until_claim(shared_etcd: Any, control: AccessControl) -> None:
    """As after a restore of a snapshot from a version without owner keys."""
    async with shared_etcd.client("root") as root:
        await root.apply([Delete(owner_key("/clusters/a/"))])
        await root.access.add_role("other")
        await control.check()
        assert await root.access.permissions_of("a") == {OWN}
        assert not control.is_granted("a")
        await grant(control, "a")
        assert control.is_granted("a")


async def test_late_grant_of_a_taken_over_prefix_is_revoked(
    shared_etcd: Any, control: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that was frozen during a grant resumes after a namesake has taken over the prefix."""
    keyspace, owner = control._etcd.keyspace, Owner("uid-of-c", "c")
    await keyspace.claim("/clusters/c/", owner=owner, known=False)
    granting = keyspace.grant

    async def late(user: str, *, prefix: str, read_only: bool) -> bool:
        await keyspace.take_over(prefix, former=owner, owner=NAMESAKE)
        return await granting(user, prefix=prefix, read_only=read_only)

    monkeypatch.setattr(keyspace, "grant", late)
    async with shared_etcd.client("root") as root:
        with pytest.raises(PrefixNotOwned):
            await control.grant("c", prefix="/clusters/c/", owner=owner)
        assert await root.access.roles_of("c") is None
        assert not control.is_granted("c")
