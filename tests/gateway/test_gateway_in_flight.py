"""Changes in flight that the gateway lists while a control plane is held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from kplane.gateway.in_flight import ChangesInFlight


class Envoy:
    """Fake Envoy that writes log lines, and records runtime values."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.now = 0.0
        self.values: list[int] = []

    async def set_runtime(self, _: str, value: int) -> None:
        self.values.append(value)

    def write(self, name: str, **more: Any) -> None:
        line = {
            "id": name,
            "began": "1700000000.250",
            "upstream": "uid-one/changes",
            "method": "POST",
            "path": f"/{name}",
            "client": "192.0.2.7",
        }
        self.append(orjson.dumps(line | more) + b"\n")

    def append(self, text: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(text)


@pytest.fixture
def envoy(tmp_path: Path) -> Envoy:
    return Envoy(tmp_path / "changes.log")


@pytest.fixture
def changes(envoy: Envoy) -> ChangesInFlight:
    return ChangesInFlight(envoy.file, administration=cast("Any", envoy), clock=lambda: envoy.now)


@pytest.fixture
def paths(envoy: Envoy, changes: ChangesInFlight) -> Callable[..., list[str]]:
    def after(seconds: float) -> list[str]:
        envoy.now += seconds
        changes.look()
        return [change.path for change in changes.oldest("uid-one")]

    return after


async def test_record_sets_runtime_once_and_truncates_log(envoy: Envoy, changes: ChangesInFlight) -> None:
    envoy.write("former")
    for recording in (True, True, False, False):
        await changes.record(wanted=recording)
    assert envoy.values == [100, 0]
    assert envoy.file.read_bytes() == b""


def test_oldest_returns_three_oldest_changes_of_control_plane(envoy: Envoy, paths: Callable[..., list[str]]) -> None:
    for number in (5, 4, 3, 2, 1):
        envoy.write(f"c{number}", began=f"170000000{number}.0")
    envoy.write("read", upstream="uid-one")
    envoy.write("other", upstream="uid-two/changes")
    envoy.write("waiting", upstream=None)
    envoy.write("certificate", upstream="uid-one/front-proxy-changes", began="1600000000")
    assert paths(1) == ["/certificate", "/c1", "/c2"]


def test_change_without_new_log_line_is_dropped(envoy: Envoy, paths: Callable[..., list[str]]) -> None:
    envoy.write("a")
    envoy.write("b")
    assert paths(1) == ["/a", "/b"]
    envoy.write("b")
    assert paths(2) == ["/a", "/b"]
    assert paths(4) == ["/b"]


def test_change_description_is_truncated_and_printable(envoy: Envoy, changes: ChangesInFlight) -> None:
    envoy.write("a", path="/\x1b[2J" + "\u202e" + "y" * 10_000, method="M" * 1000)
    envoy.append(b"no JSON\n[]\n")
    envoy.write("broken", began="soon")
    envoy.append(b'{"half a line')
    changes.look()
    (change,) = changes.oldest("uid-one")
    assert change.path == f"/?[2J?{'y' * 113}…"
    assert (change.method, change.described["began"]) == (f"{'M' * 15}…", "2023-11-14T22:13:20Z")


def test_changes_in_flight_bound_memory_and_log_file(envoy: Envoy, changes: ChangesInFlight) -> None:
    for number in range(9000):
        envoy.write(f"c{number}", began=str(1_700_000_000 + number))
    for _ in range(3):
        envoy.now += 1
        changes.look()
    assert len(changes._seen) == 1000
    assert changes.oldest("uid-one")[0].path == "/c0"
    assert envoy.file.stat().st_size == 0
