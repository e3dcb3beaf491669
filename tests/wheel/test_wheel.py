"""Wheel of kplane: files, and use beside a project whose packages are named like our components."""

from __future__ import annotations

import site
import subprocess
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPONENTS = sorted({path.parent.name for path in ROOT.glob("*/kplane/*/__init__.py")} - {"provider"})
"""All components except the runtime, which is a separate distribution."""
PROGRAM = """
import api.own, provider.own, tools.own
import kplane.cli.main, kplane.controlplane_operator.main, kplane.mcm.main, kplane.testing.plugin
from kplane.binaries.upstreams import KUBERNETES
from kplane.embedded.manifests import crd_manifests, rbac_manifests
from kplane.cli.demo.steps import EXAMPLES
from kplane.cli.installation import CHART
print(*kplane.__path__)
print(len(crd_manifests()), len(rbac_manifests()) > 5)
print(KUBERNETES.go_mod.is_file(), (EXAMPLES / "class.yaml").is_file(), (CHART / "Chart.yaml").is_file())
"""


def test_wheel_has_only_package_kplane_with_all_components(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"kplane"}
    assert sorted({name.split("/")[1] for name in names if name.startswith("kplane/")}) == COMPONENTS
    outside = ("configmaps.py", "README.md")
    strange = [name for name in names if "/tests/" in name or "examples" in name or name.endswith(outside)]
    assert strange == []
    # Folders of the examples are separate projects.
    assert [name for name in names if name.partition("/demo/manifests/")[2].count("/")] == []
    assert "kplane/embedded/data/fake-nodes.yaml" in names


def test_wheels_of_both_distributions_share_no_file(wheel: zipfile.ZipFile, provider_wheel: zipfile.ZipFile) -> None:
    """If pip uninstalls a distribution, the files of the other distribution stay."""
    assert set(wheel.namelist()).isdisjoint(provider_wheel.namelist())


def test_every_component_has_py_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"kplane/{component}/py.typed" for component in COMPONENTS} <= names


def test_wheel_works_beside_packages_named_like_components(
    wheel: zipfile.ZipFile, provider_wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """The environment has the dependencies, and not this checkout."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    wheel.extractall(packages)
    provider_wheel.extractall(packages)
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    project = tmp_path / "project"
    for name in ("api", "provider", "tools"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").touch()
        (project / name / "own.py").touch()
    command = [environment / "bin" / "python", "-c", PROGRAM]
    ran = subprocess.run(
        command, cwd=project, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == [str(packages / "kplane"), "5 True", "True True True"], ran.stderr
