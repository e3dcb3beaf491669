"""An Envoy that hangs is restarted, and a busy Envoy is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import AsyncMock, create_autospec

import pytest

from kplane.gateway import envoy_probe
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.silence import Silence
from kplane.workloads import ComponentState, Phase, ProcessRuntime, processor_seconds

from .fleet import no_waker, serving


class Envoy:
    """Clock, and processor time of Envoy."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used: float | None = 7.0
        self.silence = Silence(clock=lambda: self.now, used=lambda pid: self.used)

    def fail(self, *, seconds: float, share: float = 0.0, pid: int | None = 1, every: float = 5.0) -> None:
        """Let requests fail while Envoy uses a share of a CPU."""
        end = self.now + seconds
        while self.now < end:
            self.silence.note(pid)
            self.now += every
            if self.used is not None:
                self.used += every * share


def test_stopped_envoy_hangs_after_thirty_seconds() -> None:
    envoy = Envoy()
    envoy.fail(seconds=25)
    assert not envoy.silence.is_hang()
    envoy.fail(seconds=5)
    assert envoy.silence.is_hang()
    assert envoy.silence.seconds == 30


def test_busy_envoy_does_not_hang_until_it_is_stopped() -> None:
    envoy = Envoy()
    envoy.fail(seconds=300, share=0.02)
    assert not envoy.silence.is_hang()
    assert envoy.silence.seconds == 300
    envoy.fail(seconds=30)
    assert envoy.silence.is_hang()


def test_response_ends_the_silence() -> None:
    envoy = Envoy()
    envoy.fail(seconds=25)
    envoy.silence.end()
    assert envoy.silence.seconds is None
    envoy.fail(seconds=25)
    assert not envoy.silence.is_hang()


def test_stopped_controller_does_not_blame_envoy() -> None:
    envoy = Envoy()
    envoy.fail(seconds=10)
    envoy.now += 3600
    assert not envoy.silence.is_hang()


@pytest.mark.parametrize("pid", [None, 2])
def test_restarted_or_absent_envoy_does_not_hang(pid: int | None) -> None:
    envoy = Envoy()
    envoy.fail(seconds=25)
    envoy.fail(seconds=25, pid=pid)
    assert not envoy.silence.is_hang()


def test_ended_envoy_does_not_hang() -> None:
    envoy = Envoy()
    envoy.fail(seconds=25)
    envoy.used = None
    envoy.fail(seconds=25)
    assert not envoy.silence.is_hang()


def test_stopped_process_uses_no_processor_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            while (processor_seconds(process.pid) or 0.0) < 0.1:
                assert process.poll() is None
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            stopped_at, own = processor_seconds(process.pid), processor_seconds(os.getpid()) or 0.0
            while (processor_seconds(os.getpid()) or 0.0) < own + 0.1:
                assert processor_seconds(process.pid) == stopped_at
        finally:
            process.kill()
    assert processor_seconds(process.pid) is None


@pytest.mark.parametrize("hangs", [True, False])
async def test_data_plane_restarts_envoy_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    program = tmp_path / "envoy"
    program.touch()
    runtime = create_autospec(ProcessRuntime, instance=True)
    runtime.state.return_value = ComponentState(name="envoy", phase=Phase.READY, pid=os.getpid())
    directory = tmp_path / "g"
    plane = DataPlane(directory, validate=AsyncMock(), program=program, runtime=runtime, waker=no_waker())
    async with plane.running():
        monkeypatch.setattr("kplane.gateway.data_plane._CONFIRMED_SECONDS", 0.0)
        for _ in range(3):
            # Envoy's socket does not exist.
            assert await plane.failure() == ""
        monkeypatch.setattr("kplane.gateway.silence._HANG_SECONDS", 0.0)
        monkeypatch.setattr("kplane.gateway.silence._BUSY_SHARE", 1e9 if hangs else 0.0)
        runtime.reset_mock()
        await plane.apply([], serving=serving())
    assert [call[0] for call in runtime.method_calls if call[0] != "state"] == [*(["stop"] if hangs else []), "apply"]


@pytest.mark.parametrize(
    ("answer", "code"), [(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", 0), (b"", 1), (None, 1), (b"SSH-2.0\r\n", 1)]
)
def test_probe_fails_without_response_of_envoy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, code: int
) -> None:
    """Envoy that is not ready responds 503. The kernel accepts the connection of a probe for a stopped Envoy."""
    monkeypatch.setattr(envoy_probe, "_TIMEOUT_SECONDS", 0.2)
    path = tmp_path / "envoy.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def respond() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(1000).startswith(b"GET /ready HTTP/1.1\r\n")
                connection.sendall(answer or b"")

        thread = threading.Thread(target=respond, daemon=True)
        if answer is not None:
            thread.start()
        assert envoy_probe.main([str(path)]) == code
        if answer is not None:
            thread.join(timeout=10)


def test_probe_fails_without_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert envoy_probe.main([str(tmp_path / "envoy.sock")]) == 1
    assert "failed to probe Envoy at" in capsys.readouterr().err
    assert envoy_probe.main([]) == 1
