"""The wheel of the multicluster runtime alone: what it holds, and that it runs without what it does not ask for."""

from __future__ import annotations

import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, pkgutil, importlib, sys

for missing in ("kopf", "prometheus_client", "pydantic", "uvloop"):
    sys.modules[missing] = None

import kplane.provider
from kplane.provider import Manager, controller, run
from kplane.provider.providers.file import FileProvider

optional = ("kplane.provider.contrib", "kplane.provider.serving.http", "kplane.provider.serving.metrics")
for module in pkgutil.walk_packages(kplane.provider.__path__, "kplane.provider."):
    if not module.name.startswith(optional):
        importlib.import_module(module.name)

async def reconcile(request, cluster):
    raise AssertionError

class Done:
    async def run(self):
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)

manager = Manager(None, FileProvider(directories=["."]), awares=[Done()], name="test")
controller(manager).for_("v1/ConfigMap").build(reconcile)
run(manager)
print(*kplane.__path__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT / "provider", check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return zipfile.ZipFile(built)


def test_it_holds_the_runtime_without_what_needs_the_rest(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.rpartition("kplane/provider/")[0] for name in names} == {""}
    assert "kplane/provider/py.typed" in names
    assert not [name for name in names if name.startswith("kplane/provider/providers/kplane/")]
    assert [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]


def test_its_version_and_dependencies_are_those_of_the_big_one(wheel: zipfile.ZipFile) -> None:
    (described,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = Parser().parsestr(wheel.read(described).decode())
    big = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == big["version"]
    of_big = map(Requirement, [*big["dependencies"], *big["optional-dependencies"]["operator"]])
    asked = map(Requirement, metadata.get_all("Requires-Dist", []))
    bounds = {each.name: each.specifier for each in asked}
    assert bounds.items() <= {each.name: each.specifier for each in of_big}.items()
    assert {"aiohttp", "kopf"} <= bounds.keys()


def test_it_runs_in_an_environment_of_its_own(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    wheel.extractall(packages)
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    clusters = tmp_path / "clusters"
    clusters.mkdir()
    ran = subprocess.run(
        [environment / "bin" / "python", "-c", PROGRAM],
        cwd=clusters,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout.split()) == (0, [str(packages / "kplane")]), ran.stderr
