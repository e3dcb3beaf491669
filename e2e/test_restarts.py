"""Kills both operators at work. Tenants keep their data and their API servers."""

from __future__ import annotations

from typing import Any

from e2e.operators import Operators
from e2e.platform import Platform
from e2e.tenant import Tenant

_COUNT = 3


def test_operators_resume_after_kill_and_keep_tenants(
    platform: Platform, session_platform: Platform, acme: Tenant, k8s: Any
) -> None:
    """New control planes become Ready, existing control planes work, and credentials stay valid."""
    operators = Operators.of(k8s, platform.kubectl)
    standard = session_platform.get("ControlPlane", acme.name)["spec"]["classRef"]["name"]
    published = session_platform.kubeconfigs(acme.name)
    controllers = _controllers_secret(session_platform, acme.name)
    status = session_platform.get("ControlPlane", acme.name)["status"]

    names = [platform.name(f"restart-{number}") for number in range(_COUNT)]
    for number, name in enumerate(names):
        platform.create("ControlPlane", name, classRef={"name": standard})
        if number == 1:
            former = operators.running()
            assert len(former) == 2
            operators.kill()
            # API servers of tenants run without the operators.
            acme.keep("written", "while no operator ran")
    for name in names:
        platform.becomes_ready("ControlPlane", name, timeout_seconds=240)
        platform.resolves(name, timeout_seconds=60)
        platform.tenant(name).wait_account("default")
    operators.wait_back(former)

    assert acme.kept("written") == "while no operator ran"
    acme.wait_account("default")
    acme.deploy("after-the-restart")
    acme.wait_pods("after-the-restart")
    assert session_platform.kubeconfigs(acme.name) == published
    assert _controllers_secret(session_platform, acme.name) == controllers
    after = session_platform.get("ControlPlane", acme.name)["status"]
    for field in ("endpoint", "endpoints", "kubeconfigSecretRef", "controllersSecretRef", "version"):
        assert after[field] == status[field]


def _controllers_secret(platform: Platform, name: str) -> object:
    return platform.secret(platform.get("ControlPlane", name)["status"]["controllersSecretRef"])
