"""An etcd with known bypasses of its access control is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.binaries.upstreams import ETCD
from kplane.controlplane_operator.shared_etcd import versions
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.versions import version_problem

OLDEST = "use 3.5.33, 3.6.14, 3.7.1 or newer"


@pytest.mark.parametrize(
    "version", [ETCD.version, "3.5.33", "3.5.40", "3.6.14", "3.7.1", "3.8.0", "4.0.0", "3.7.2-rc.0"]
)
def test_versions_without_known_bypasses_are_accepted(version: str) -> None:
    assert version_problem(version) is None


@pytest.mark.parametrize("version", ["3.4.44", "3.5.29", "3.5.32", "3.6.8", "3.6.10", "3.6.13", "3.6.14-rc.1", "3.7.0"])
def test_version_with_known_bypass_is_refused_with_remedy(version: str) -> None:
    problem = version_problem(version) or ""
    assert problem.startswith(f"version {version} has known bypasses of access control")
    assert OLDEST in problem


@pytest.mark.parametrize("version", ["", "3.6", "unknown"])
def test_unparsable_version_is_refused(version: str) -> None:
    assert OLDEST in (version_problem(version) or "")


@pytest.mark.integration
async def test_reported_version_of_real_etcd_is_checked(shared_etcd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = SharedEtcd(shared_etcd.url)
    etcd.use(shared_etcd.keyspace.credentials, authority=shared_etcd.authority)
    assert await etcd.keyspace.version() == ETCD.version
    assert await etcd.problem() is None
    assert await etcd.refusal() is None
    major, minor, patch = (int(part) for part in ETCD.version.split("."))
    monkeypatch.setitem(versions._FIXED, (major, minor), patch + 1)
    for message in (await etcd.problem(), await etcd.refusal()):
        assert message is not None
        assert f"shared etcd at {shared_etcd.url} is refused: version {ETCD.version} has known bypasses" in message
    await etcd.close()
