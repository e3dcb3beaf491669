"""What the documents tell to do, done: installation to uninstallation, on a cluster without kplane."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.documents import blocks, script
from e2e.installation import CHART, ROOT, Helm, images, require_unused
from e2e.kubectl import Kubectl

_DOCUMENTS: Final = ("install", "operate", "upgrade", "troubleshooting", "uninstall")
_SECONDS: Final = 1800

_DOCUMENT: Final = """
<!-- e2e: skip: needs a cloud -->

```sh
false
```
```yaml
# file: values.yaml
a: $b
```
```yaml
b: 1
```
```sh
name=x
```
```console
$ false
```
```sh
cat values.yaml
echo $name
```
"""


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_commands_are_well_formed(name: str, tmp_path: Path) -> None:
    """Each document has commands, and bash can read them."""
    document = ROOT / "docs" / f"{name}.md"
    assert any(block.file is None for block in blocks(document))
    done = subprocess.run(["bash", "-n"], input=script(document), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_would_not_be_run_is_told(tmp_path: Path) -> None:
    """A block that its author believes to be tested, and is not, is an error."""
    document = tmp_path / "x.md"
    document.write_text("```bash\nfalse\n```\n")
    with pytest.raises(AssertionError, match="write ```sh"):
        list(blocks(document))
    document.write_text("<!-- e2e: skip: -->\n```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="say why"):
        list(blocks(document))
    document.write_text(_DOCUMENT)
    done = subprocess.run(["bash"], input=script(document), capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "a: $b" in done.stdout.splitlines()
    assert "x" in done.stdout.splitlines()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a checkout of the project is for who only installs it."""
    directory = tmp_path_factory.mktemp("documents")
    for name in ("deploy", "examples"):
        (directory / name).symlink_to(ROOT / name)
    return directory


@pytest.fixture(scope="module")
def environment(k8s: Any, kubectl: Kubectl, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """kubectl and helm on PATH, and the cluster as the current one of the kubeconfig."""
    programs = tmp_path_factory.mktemp("bin")
    (programs / "kubectl").symlink_to(kubectl.program)
    (programs / "helm").symlink_to(helm.program)
    return {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def released(k8s: Any, kubectl: Kubectl, helm: Helm) -> Iterator[None]:
    """The images under the names that the chart has by itself, as if they had been released; and no kplane yet.

    On this machine the names mean afterwards what they meant before.
    """
    require_unused(kubectl)
    assert helm.status() is None, "kplane is installed already: run test_uninstall.py first"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names = [
        f"{values[program]['image']['repository']}:{values[program]['image']['tag'] or chart['appVersion']}"
        for program in ("operator", "mcm")
    ]
    with contextlib.ExitStack() as afterwards:
        for image, name in zip(images(), names, strict=True):
            before = _docker("image", "ls", "--no-trunc", "--quiet", name).strip()
            _docker("tag", image, name)
            afterwards.callback(_docker, *(("tag", before, name) if before else ("rmi", "--no-prune", name)))
        k8s.load_images(*names)
        yield


def _docker(*args: str) -> str:
    return subprocess.run(["docker", *args], check=True, capture_output=True, text=True).stdout


@pytest.mark.k8s_needs("pods", "images")
@pytest.mark.timeout(_SECONDS, func_only=True)
@pytest.mark.parametrize("name", _DOCUMENTS)
def test_every_command_works(released: None, place: Path, environment: Mapping[str, str], name: str) -> None:
    """Whoever copies the commands of the document one after the other gets to its end."""
    file = place / f"{name}.sh"
    file.write_text(script(ROOT / "docs" / f"{name}.md"))
    with (place / f"{name}.log").open("w+") as log:
        done = subprocess.run(
            ["bash", str(file)],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
        log.seek(0)
        printed = log.read()
    assert done.returncode == 0, f"docs/{name}.md ended with status {done.returncode}:\n{printed[-6000:]}"
