"""The command with the packages of `kplane[cli]` only: without kopf, grpcio, obstore, Envoy and their like."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from aiohttp import web
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from kplane.cli.errors import ExitCode
from kplane.cli.extras import require_operators
from kplane.cli.main import app
from tests.tls_server import serve_over_tls

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OPERATORS = frozenset(canonicalize_name(Requirement(text).name) for text in (*EXTRAS["operator"], *EXTRAS["gateway"]))
"""Distributions that the operators and the gateway need besides those of mcm."""
BLOCKED = frozenset(
    module
    for module, distributions in importlib.metadata.packages_distributions().items()
    if OPERATORS & {canonicalize_name(name) for name in distributions}
)
"""Their modules, which the programs below cannot import."""
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({sorted(BLOCKED)!r}))"
COMMAND = f"{BLOCK}; from kplane.cli.main import main; main()"
IMPORT_ALL = f"""
{BLOCK}
import importlib, pkgutil
import kplane.cli, kplane.client
names = {{
    module.name for package in (kplane.cli, kplane.client)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
}}
for name in sorted(names - {{"kplane.cli.demo.run"}}):
    importlib.import_module(name)
print(len(names))
"""
ACME = {
    "apiVersion": "controlplane.kplane.dev/v1alpha1",
    "kind": "ControlPlane",
    "metadata": {"name": "acme", "uid": "0-0", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"className": "shared"},
}


async def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `kplane` without the packages of the operators."""
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", COMMAND, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200.0,
    )


def test_blocked_modules_are_those_of_operators_and_gateway() -> None:
    assert {"cronsim", "envoy", "google", "grpc", "jwt", "kopf", "obstore", "pyrage"} <= BLOCKED
    assert not BLOCKED & {"aiohttp", "kplane", "pydantic", "rich", "typer"}


def test_extra_cli_has_no_distribution_of_the_operators() -> None:
    light = {canonicalize_name(Requirement(text).name) for text in EXTRAS["cli"]}
    assert light == {"packaging", "rich", "typer"}
    assert {Requirement(text).extras.pop() for text in EXTRAS["local"]} == {"cli", "gateway", "operator"}


async def test_help_is_printed_without_packages_of_the_operators() -> None:
    ran = await run("--help")
    assert ran.returncode == 0, ran.stderr
    assert "connect" in ran.stdout


def test_modules_of_commands_import_without_packages_of_the_operators() -> None:
    """Only the demo itself, which runs the operators, needs their packages."""
    command = [sys.executable, "-c", IMPORT_ALL]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200.0)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 50


async def test_get_shows_control_plane_without_packages_of_the_operators(tmp_path: Path) -> None:
    server = web.Application()

    async def acme(_: web.Request) -> web.Response:
        return web.json_response(ACME)

    server.router.add_get("/apis/controlplane.kplane.dev/v1alpha1/controlplanes/acme", acme)
    async with serve_over_tls(server, tmp_path) as config:
        (tmp_path / "ca.crt").write_bytes(config.ca_data or b"")
        kubeconfig = {
            "clusters": [
                {"name": "x", "cluster": {"server": config.server, "certificate-authority": str(tmp_path / "ca.crt")}}
            ],
            "users": [{"name": "x", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        ran = await run("get", "acme", KUBECONFIG=str(tmp_path / "config"))
    assert ran.returncode == 0, ran.stderr
    assert "acme" in ran.stdout


@pytest.mark.parametrize("command", ["demo", "up"])
def test_command_that_runs_operators_names_missing_packages(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kplane.cli.extras._is_installed", lambda name: name not in {"grpcio", "kopf"})
    ran = CliRunner().invoke(app, [command, "--directory", str(tmp_path / "never")])
    assert ran.exit_code == ExitCode.FAILED
    assert ran.stderr == (
        "error: failed to run kplane on this machine: not installed: grpcio, kopf; install kplane[local]\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_require_operators_accepts_this_environment() -> None:
    require_operators()
