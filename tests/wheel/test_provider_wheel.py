"""Wheel of the multicluster runtime: files, version, dependencies, and use without kplane."""

from __future__ import annotations

import site
import subprocess
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, pkgutil, importlib, sys

for missing in ("kopf", "prometheus_client", "pydantic", "uvloop"):
    sys.modules[missing] = None

import kplane.provider
from kplane.provider import Manager, controller, run
from kplane.provider.providers.file import FileProvider

optional = (
    "kplane.provider.contrib",
    "kplane.provider.providers.kplane",
    "kplane.provider.serving.http",
    "kplane.provider.serving.metrics",
)
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


def test_wheel_has_exactly_the_files_of_the_runtime(provider_wheel: zipfile.ZipFile) -> None:
    names = [name for name in provider_wheel.namelist() if ".dist-info/" not in name]
    files = (ROOT / "provider" / "kplane").rglob("*")
    sources = {str(path.relative_to(ROOT / "provider")) for path in files if path.is_file() and path.suffix != ".pyc"}
    assert set(names) == sources
    assert "kplane/provider/py.typed" in names
    assert [name for name in provider_wheel.namelist() if name.endswith("licenses/LICENSE")]


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (described,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(described).decode())


def requirements_of(metadata: Message) -> dict[str, Requirement]:
    requirements = map(Requirement, metadata.get_all("Requires-Dist", []))
    return {requirement.name: requirement for requirement in requirements}


def test_kplane_requires_the_runtime_of_its_own_version(
    provider_wheel: zipfile.ZipFile, wheel: zipfile.ZipFile
) -> None:
    """pip refuses any other version of the runtime."""
    runtime, kplane = metadata_of(provider_wheel), metadata_of(wheel)
    assert runtime["Version"] == kplane["Version"]
    assert str(requirements_of(kplane)["kplane-provider"]) == f"kplane-provider=={runtime['Version']}"


def test_runtime_bounds_dependencies_like_kplane(provider_wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_kplane = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["operator"]])
    bounds = {name: requirement.specifier for name, requirement in requirements_of(metadata_of(provider_wheel)).items()}
    assert bounds.items() <= {requirement.name: requirement.specifier for requirement in of_kplane}.items()
    assert {"aiohttp", "kopf"} <= bounds.keys()


def test_runtime_runs_without_kplane_and_without_extras(provider_wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    provider_wheel.extractall(packages)
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
