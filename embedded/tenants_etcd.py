"""Turns on access control in the etcd that virtual control planes share."""

from __future__ import annotations

from embedded.etcdctl import Etcdctl
from workloads import ProgramFailed

__all__ = ["enable_access_control"]


async def enable_access_control(etcdctl: Etcdctl) -> None:
    """Make `root` the administrator, known by its client certificate, and refuse everybody who has no role.

    May be repeated, and goes on where an earlier run was interrupted. Raises what etcdctl raises.
    """
    if (await etcdctl.json("auth", "status")).get("enabled"):
        return
    await _unless_there(etcdctl, "user", "add", "root", "--no-password")
    await _unless_there(etcdctl, "role", "add", "root")
    await etcdctl.run("user", "grant-role", "root", "root")
    await etcdctl.run("auth", "enable")


async def _unless_there(etcdctl: Etcdctl, *args: str) -> None:
    try:
        await etcdctl.run(*args)
    except ProgramFailed as error:
        if "already exists" not in str(error):
            raise
