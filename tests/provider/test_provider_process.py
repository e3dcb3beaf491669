"""A serving process: it runs until a signal, and logs why it cannot run."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import textwrap

import pytest

from kplane.provider.serving.process import run_until_signalled


async def test_process_freezes_imported_objects_while_it_serves() -> None:
    before, seen = gc.get_threshold(), list[bool]()

    async def run(_stop: asyncio.Event) -> None:
        seen.extend((gc.get_threshold()[0] > before[0], gc.get_freeze_count() > 1000))

    await run_until_signalled(run)
    assert seen == [True, True]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_process_warns_of_a_proxy_variable_that_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(_stop: asyncio.Event) -> None:
        return

    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    await run_until_signalled(run)
    assert "HTTPS_PROXY is set and has no effect" in caplog.text
    assert "3128" not in caplog.text


MANAGER = """
    import asyncio, os, sys
    from kplane.provider import ClusterConfig, Manager, run
    from kplane.provider.providers.nop import NopProvider

    class Ready:
        async def run(self):
            print(type(asyncio.get_running_loop()).__module__, flush=True)
            await asyncio.Event().wait()

    manager = Manager(None, NopProvider(), awares=[Ready()], name="test")
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


@pytest.mark.parametrize(
    ("before", "what", "loop"),
    [
        ("", "manager", "uvloop"),
        ("", "manager.run", "uvloop"),
        ("sys.modules['uvloop'] = None", "manager", "asyncio.unix_events"),
    ],
    ids=["manager", "function", "without uvloop"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_stops_the_manager_on_a_signal(before: str, what: str, loop: str, number: int) -> None:
    with subprocess.Popen(
        program(f"{MANAGER}\n    {before}\n    run({what})\n    print('ended')"),
        stdout=subprocess.PIPE,
        text=True,
        # A test run in the background of a shell ignores SIGINT, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().strip() == loop
        running.send_signal(number)
        rest, _ = running.communicate(timeout=60)
    assert (rest, running.returncode) == ("ended\n", 0)


def test_run_logs_a_manager_error_and_exits_with_1() -> None:
    ended = subprocess.run(
        program(
            f"{MANAGER}\n    from kplane.provider import controller"
            "\n    controller(manager).for_('v1/Pod')\n    run(manager)"
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    line = json.loads(ended.stderr)
    assert line["message"].startswith("the manager cannot run: controller v1/Pod is described, and not made")
