"""The wheel of the multicluster runtime: its files, its version, and that it runs without kplane."""

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


def test_wheel_holds_the_runtime_and_nothing_else(provider_wheel: zipfile.ZipFile) -> None:
    names = [name for name in provider_wheel.namelist() if ".dist-info/" not in name]
    files = (ROOT / "provider" / "kplane").rglob("*")
    ours = {str(path.relative_to(ROOT / "provider")) for path in files if path.is_file() and path.suffix != ".pyc"}
    assert set(names) == ours
    assert "kplane/provider/py.typed" in names
    assert [name for name in provider_wheel.namelist() if name.endswith("licenses/LICENSE")]


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (described,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(described).decode())


def requirements_of(metadata: Message) -> dict[str, Requirement]:
    found = map(Requirement, metadata.get_all("Requires-Dist", []))
    return {requirement.name: requirement for requirement in found}


def test_versions_of_both_distributions_agree(provider_wheel: zipfile.ZipFile, wheel: zipfile.ZipFile) -> None:
    """kplane needs the very version of the runtime that it was released with: pip refuses another one."""
    runtime, kplane = metadata_of(provider_wheel), metadata_of(wheel)
    assert runtime["Version"] == kplane["Version"]
    assert str(requirements_of(kplane)["kplane-provider"]) == f"kplane-provider=={runtime['Version']}"


def test_dependencies_of_the_runtime_are_bounded_as_those_of_kplane(provider_wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_kplane = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["operator"]])
    bounds = {name: each.specifier for name, each in requirements_of(metadata_of(provider_wheel)).items()}
    assert bounds.items() <= {each.name: each.specifier for each in of_kplane}.items()
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
