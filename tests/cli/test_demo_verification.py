"""Checks of the demo: differences of keys, CRD versions, waiting and failing steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError

from kplane.cli.demo.orders import EARLIER, LATER, OrderVersion
from kplane.cli.demo.run import run_demo
from kplane.cli.demo.steps import EXAMPLES
from kplane.cli.demo.store import difference, prefix
from kplane.cli.demo.waiting import wait_for
from kplane.cli.errors import DemoFailed
from kplane.data import DataError
from kplane.embedded.errors import KubectlFailed


def test_difference_names_keys_added_removed_and_written() -> None:
    before = {"/a": "1", "/b": "1", "/c": "1"}
    after = {"/b": "2", "/c": "1", "/d": "1"}
    assert difference(before, after) == ["/a", "/b", "/d"]
    assert difference(before, dict(before)) == []


def test_prefix_does_not_match_longer_names() -> None:
    assert not prefix("initech-dev").startswith(prefix("initech"))
    assert not prefix("initechs").startswith(prefix("initech"))


@pytest.mark.parametrize("kind", [EARLIER, LATER])
def test_crd_version_accepts_only_its_own_objects(kind: OrderVersion) -> None:
    """Both versions have the same name, group and kind, so a cluster can serve only one version."""
    definition = json.loads(kind.definition())
    (version,) = definition["spec"]["versions"]
    assert definition["metadata"]["name"] == EARLIER.crd == LATER.crd
    assert kind.api_version == f"{definition['spec']['group']}/{version['name']}"
    required = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["required"]
    accepting = [candidate for candidate in (EARLIER, LATER) if set(required) <= set(candidate.example)]
    assert accepting == [kind]
    assert json.loads(kind.order("first"))["spec"] == kind.example


async def test_wait_timeout_names_last_result() -> None:
    async def probe() -> list[str]:
        return ["Pending"]

    with pytest.raises(DemoFailed, match=r"failed to wait for Pods: not after 0 s; last seen: \['Pending'\]"):
        await wait_for("Pods", probe, lambda found: not found, timeout_seconds=0.0)


async def test_wait_retries_kubectl_errors_and_names_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.cli.demo.waiting._POLL_SECONDS", 0.0)
    answers = iter([KubectlFailed("refused"), "there"])

    async def probe() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await wait_for("object", probe, lambda found: found == "there", timeout_seconds=5.0) == "there"

    async def failing() -> str:
        raise KubectlFailed("refused")

    with pytest.raises(DemoFailed, match="refused"):
        await wait_for("object", failing, lambda found: True, timeout_seconds=0.0)


def test_example_files_of_demo_exist() -> None:
    for name in ("class.yaml", "on-demand.yaml", "deployment.yaml"):
        assert (EXAMPLES / name).is_file()


@pytest.mark.parametrize("kind", [DemoFailed, DataError, ClientConnectionError, KubectlFailed])
def test_failed_step_ends_demo_with_error_message(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        # The task group of the writing clients raises such a group.
        raise ExceptionGroup("", [kind("failed to keep the data of globex: 1 of 500 objects")])

    monkeypatch.setattr("kplane.cli.demo.run._run", fail)
    monkeypatch.setattr("signal.signal", lambda *args: None)
    assert run_demo(tmp_path / "demo", clean=True, count=5) == 1
    assert "error: failed to keep the data of globex: 1 of 500 objects\n" in capsys.readouterr().out
