"""GitHub workflows: existing targets and modules, pinned actions, and minimal permissions."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from kplane.binaries.upstreams import KUBERNETES

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Any]:
    workflow = yaml.safe_load(path.read_text())
    assert isinstance(workflow, dict)
    return workflow


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in load(path)["jobs"].values():
        yield from job.get("steps", [])


def scripts(path: Path) -> list[str]:
    """Return the scripts of the steps of a workflow, with continued lines joined."""
    return [step["run"].replace("\\\n", " ") for step in steps(path) if "run" in step]


def test_workflows_are_ci_nightly_and_release() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yaml", "nightly.yaml", "release.yaml"]


@each_workflow
def test_make_targets_of_workflow_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [
        (ROOT / script).read_text().replace("exec ", "") if script == ".ci/run" else script for script in scripts(path)
    ]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    called = {word for line in lines if line.startswith("make ") for word in line.split()[1:] if "=" not in word}
    assert called, "no step calls make"
    assert called <= targets


@each_workflow
def test_modules_that_workflow_runs_exist(path: Path) -> None:
    for script in scripts(path):
        for module in re.findall(r"\bpython (?:-P )?-m ([\w.]+)", script):
            assert importlib.util.find_spec(module), module


@each_workflow
def test_scripts_of_workflow_are_valid_without_expressions(path: Path) -> None:
    for script in scripts(path):
        # GitHub would insert the value into the script, and bash would run it. Environment variables are safe.
        assert "${{" not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@each_workflow
def test_actions_of_workflow_are_pinned_by_commit(path: Path) -> None:
    """A tag can be moved. The comment names the release for the reader."""
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines()]
    used = [line for line in lines if line.startswith("uses:") and not line.startswith("uses: ./")]
    assert len(used) == sum("uses" in step for step in steps(path)) > 0
    for line in used:
        assert re.fullmatch(r"uses: (actions|anchore|docker|sigstore)/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), (
            line
        )


def test_workflows_pin_each_action_to_the_same_commit() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, pin in re.findall(r"uses: ([a-z]+/[a-z-]+)@(.+)", path.read_text()):
            pins.setdefault(action, set()).add(pin)
    assert {action: commits for action, commits in pins.items() if len(commits) > 1} == {}


@each_workflow
def test_workflow_is_read_only_except_release_jobs(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    writing = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
    assert writing == ({"images", "publish"} if path.stem == "release" else set())


@each_workflow
def test_jobs_have_a_timeout(path: Path) -> None:
    for name, job in load(path)["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= (120 if name == "test-all" else 60), name


def test_ci_and_nightly_run_each_tested_python() -> None:
    job = load(ROOT / ".github" / "workflows" / "ci.yaml")["jobs"]["check"]
    tested = re.search(r"^TESTED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tested is not None
    assert job["strategy"]["matrix"]["python"] == tested[1].split()
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    nightly = load(ROOT / ".github" / "workflows" / "nightly.yaml")["jobs"]["test-all"]
    [versions] = [
        step["with"]["python-version"] for step in nightly["steps"] if "python-version" in step.get("with", {})
    ]
    assert versions.split() == tested[1].split()


def test_release_needs_the_full_nightly_and_ci_runs() -> None:
    """A skipped job does not block the release, so no job may have a condition."""
    nightly, release = (
        load(ROOT / ".github" / "workflows" / f"{name}.yaml")["jobs"] for name in ("nightly", "release")
    )
    assert release["nightly"]["uses"] == "./.github/workflows/nightly.yaml"
    assert release["ci"]["uses"] == "./.github/workflows/ci.yaml"
    assert {"ci", "nightly"} <= set(release["images"]["needs"])
    assert "images" in release["publish"]["needs"]
    runs = {step["run"]: name for name, job in nightly.items() for step in job["steps"] if "run" in step}
    assert runs == {
        "make test-all": "test-all",
        "make e2e-kind": "e2e-kind",
        "make audit": "audit",
        "make images": "scan",
    }
    assert not any("if" in job for job in (*nightly.values(), *release.values()))


def test_nightly_profile_of_hypothesis_is_not_derandomized() -> None:
    profile = load(ROOT / ".github" / "workflows" / "nightly.yaml")["env"]["HYPOTHESIS_PROFILE"]
    assert settings.get_profile(profile).derandomize is False
    assert settings.get_profile("kplane").derandomize is True


def test_release_builds_all_targets_and_programs_of_dockerfile() -> None:
    path = ROOT / ".github" / "workflows" / "release.yaml"
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = load(path)["jobs"]["images"]["strategy"]["matrix"]["image"]
    assert targets == re.findall(r"^FROM runtime AS (\S+)$", dockerfile, re.MULTILINE)
    programs = set(re.findall(r"build/programs/linux-\$\{TARGETARCH\}/(\S+)", dockerfile))
    (arguments,) = re.findall(r"kplane\.binaries .*--into \S+ (.*)", "\n".join(scripts(path)))
    assert set(arguments.split()) == programs


def test_nightly_scans_every_image() -> None:
    scan = load(ROOT / ".github" / "workflows" / "nightly.yaml")["jobs"]["scan"]["steps"]
    scanned = [step["with"]["image"] for step in scan if step.get("uses", "").startswith("anchore/scan-action@")]
    targets = re.findall(r"^FROM runtime AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert scanned == [f"kplane-{target}:dev" for target in targets]


def test_release_signs_and_verifies_images_and_chart() -> None:
    """A signature names the workflow and its commit. The chart names only images with such a signature."""
    path = ROOT / ".github" / "workflows" / "release.yaml"
    jobs = load(path)["jobs"]
    for name in ("images", "publish"):
        assert jobs[name]["permissions"]["id-token"] == "write"
        assert any("sigstore/cosign-installer@" in step.get("uses", "") for step in jobs[name]["steps"])
    build, chart, push = (script for script in scripts(path) if "cosign" in script)
    assert "--provenance=mode=max" in build
    assert "--sbom=true" in build
    for script, signed in ((build, "$REGISTRY/kplane-$IMAGE@$digest"), (push, "$REGISTRY/charts/kplane@${digest:?}")):
        assert f'cosign sign --yes "{signed}"' in script
    assert 'cosign verify "$REGISTRY/kplane-$image@$digest"' in chart
    assert chart.index("cosign verify") < chart.index("tools.chart_images") < chart.index("package deploy/chart/kplane")
    attested = [step["with"] for step in jobs["publish"]["steps"] if "attest-build-provenance" in step.get("uses", "")]
    assert attested == [{"subject-path": "dist/*"}]


def test_base_image_is_pinned_by_digest() -> None:
    default = re.search(r"^ARG BASE_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert default is not None
    assert re.fullmatch(r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", default[1])
    # A release is built from the default.
    assert "BASE_IMAGE" not in (ROOT / ".github" / "workflows" / "release.yaml").read_text()


def test_pip_installs_tools_with_hashes() -> None:
    locks = ROOT / "tools" / "locks"
    assert {path.stem for path in locks.glob("*.in")} == {path.stem for path in locks.glob("*.lock")} > set()
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install (.*)", makefile)
    assert installs
    for arguments in installs:
        assert "--require-hashes" in arguments or arguments.endswith(
            "--no-deps --no-build-isolation -e ./provider -e ."
        ), arguments


def test_kind_runs_the_pinned_minor_version_of_kubernetes() -> None:
    image = load(ROOT / ".github" / "workflows" / "nightly.yaml")["jobs"]["e2e-kind"]["env"]["KIND_NODE_IMAGE"]
    match = re.fullmatch(r"kindest/node:v(\d+\.\d+)\.\d+@sha256:[0-9a-f]{64}", image)
    assert match, image
    assert KUBERNETES.version.startswith(f"{match[1]}.")
