"""Shortage of inotify instances: the message has the limit, the use and the remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from kplane.embedded import components
from kplane.embedded.python_path import python_path
from kplane.gateway.program import INOTIFY_INSTANCES
from kplane.workloads import inotify_shortage
from kplane.workloads.processes import inotify


def _asked(beginning: Sequence[str], needed: int) -> str:
    """Return the shortage that a separate process reports."""
    code = f"from kplane.workloads import inotify_shortage; print(inotify_shortage({needed}), end='')"
    command = [*beginning, sys.executable, "-c", code]
    environment = {"PYTHONPATH": python_path()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_shortage_has_limit_use_and_remedy(few_inotify_instances) -> None:
    # Other programs of this machine may use some of the three instances.
    assert re.fullmatch(
        r"user 0 has [0-3] of 3 inotify instances in use \(fs\.inotify\.max_user_instances\), and 5 more are needed;"
        r" raise the limit: sudo sysctl -w fs\.inotify\.max_user_instances=8192",
        _asked(few_inotify_instances(3), 5),
    )


def test_no_shortage_while_enough_instances_are_free() -> None:
    assert inotify_shortage(0) == ""


def test_limit_of_open_files_is_no_shortage() -> None:
    code = (
        "import resource, os; from kplane.workloads import inotify_shortage;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); print(inotify_shortage(60))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": python_path()}, capture_output=True, text=True, check=True
    )
    assert process.stdout == "\n"


def test_no_shortage_on_systems_without_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify.ctypes, "CDLL", lambda *_, **__: object())
    assert inotify_shortage(1000) == ""


def test_check_closes_its_inotify_instances() -> None:
    before = len(os.listdir("/proc/self/fd"))
    inotify_shortage(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_embedded_and_gateway_count_equal_instances_for_envoy() -> None:
    assert components.ENVOY_INOTIFY_INSTANCES == INOTIFY_INSTANCES
