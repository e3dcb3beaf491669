"""Processes of kplane do not run Python files of the working directory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kplane.binaries.interpreter import inheriting_command, module_command
from kplane.binaries.programs import Binaries
from kplane.cli.kubeconfigs import with_exec_credential
from kplane.embedded import components
from kplane.embedded.daemon import Daemon
from kplane.embedded.errors import DaemonFailed
from kplane.embedded.python_path import python_path
from kplane.workloads import Address
from tools.packages import components as components_of

from .planted import MARK

ROOT = Path(__file__).parents[2]
SCANNED = (*components_of(ROOT), "e2e", "examples", "tools", "benchmarks")
ELSEWHERE = {"grpc_tools.protoc", "benchmarks.provider_worker", "kplane.cli.main"}
"""Development tools that run in the clone, and the entry point that old kubeconfigs name."""
PUBLISHED = yaml.safe_dump(
    {
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }
)


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_plain_python_start_runs_planted_modules(planted: Path) -> None:
    assert MARK in run([sys.executable, "-m", "kplane.cli.main", "--help"], planted).stderr


def test_exec_plugin_ignores_planted_modules(planted: Path) -> None:
    document = with_exec_credential(PUBLISHED, name="acme", uid="0-0", context="absent", internal=False)
    plugin = document["users"][0]["user"]["exec"]
    # An empty entry of PYTHONPATH is the working directory, too.
    result = run([plugin["command"], *plugin["args"]], planted, PYTHONPATH=":", KUBECONFIG=str(planted / "none"))
    assert result.stderr.startswith("error: "), result.stderr
    assert result.returncode == 5


def test_daemon_ignores_planted_modules(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planted)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ.get('PYTHONPATH', '')}:")
    absent = Binaries.of_runtime(kubernetes=tmp_path, etcd=tmp_path)
    daemon = Daemon(tmp_path / "state", binaries=absent, operators=False, bound=False)
    with pytest.raises(DaemonFailed) as failure:
        daemon.wait_ready(timeout_seconds=60.0)
    assert MARK not in str(failure.value)
    assert "CRITICAL kplane.embedded" in str(failure.value)


def test_operators_ignore_planted_modules(planted: Path) -> None:
    address, module = Address("127.0.0.1", {"http": 1}), "kplane.gateway.main"
    component = components.python("any", module=module, args=("--help",), address=address, kubeconfig=b"")
    result = run([str(component.program), *component.args], planted, **component.env)
    assert (result.returncode, result.stderr) == (0, "")


def test_mcm_program_ignores_planted_modules(planted: Path, tmp_path: Path) -> None:
    program = components.python_program(tmp_path / "programs", module="kplane.mcm.main")
    result = run([str(program), "--help"], planted, PYTHONPATH=":")
    assert (result.returncode, result.stderr) == (0, "")


def test_python_path_has_no_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":/absolute::relative:")
    assert python_path().split(os.pathsep)[-2:] == ["/absolute", str(tmp_path / "relative")]
    assert all(entry.startswith("/") for entry in python_path().split(os.pathsep))


def test_interpreter_commands_ignore_planted_modules(planted: Path) -> None:
    for command in (module_command("string"), inheriting_command("venv", "--help")):
        assert MARK not in run(command, planted).stderr


def starts(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line and words of each list with `-m`, and of each string that begins with ` -m `."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.List | ast.Tuple):
            words = [str(element.value) if isinstance(element, ast.Constant) else "" for element in node.elts]
            if "-m" in words:
                yield node.lineno, words
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(" -m "):
            yield node.lineno, node.value.split()


def is_isolated(words: list[str]) -> bool:
    return not {"-P", "-I"}.isdisjoint(words[: words.index("-m")]) or not ELSEWHERE.isdisjoint(words)


def test_each_start_of_python_in_the_source_is_isolated() -> None:
    violations = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in SCANNED
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, words in starts(path)
        if not is_isolated(words)
    ]
    assert not violations, "start these by kplane.binaries.interpreter, or with -P"


def test_each_start_of_python_in_the_chart_is_isolated() -> None:
    violations = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "deploy").rglob("*"))
        if path.suffix in {".yaml", ".tpl", ".txt", ".json"}
        for line in path.read_text().splitlines()
        if "-m" in line and "kplane." in line and "python" in line and "-P" not in line and "#" not in line
    ]
    assert not violations
