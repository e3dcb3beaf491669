"""The last fatal line in the log of a program, which has the cause of its exit."""

from __future__ import annotations

import pytest

from kplane.workloads.last_words import last_fatal_line
from kplane.workloads.pods import observation

ENVOY = """\
[2026-11-27 23:05:15.617][11096][critical][assert] [source/common/watcher_impl.cc:25] assert failure: inotify_fd_ >= 0.
[2026-11-27 23:05:15.626][11096][error][envoy_bug] [./source/common/common/assert.h:66] #12 UNKNOWN [0x7f8f01ae024a]
[2026-11-27 23:05:15.626][11096][critical][backtrace] [./source/server/backtrace.h:167] #0: [0x7f8f01af5050]
"""
API_SERVER = """\
I1127 10:00:00.000000 1 options.go:1] "starting"
E1127 10:00:00.000001 1 run.go:72] "command failed" err="invalid argument"
"""
ETCD = """\
{"level":"warn","msg":"slow"}
{"level":"fatal","msg":"failed to purge","error":"no space left"}
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (ENVOY, ENVOY.splitlines()[0]),
        (API_SERVER, API_SERVER.splitlines()[1]),
        (ETCD, ETCD.splitlines()[1]),
        ("panic: no map\n\ngoroutine 1 [running]:\nmain.main()\n", "panic: no map"),
        ("fatal error: out of memory\n\nruntime stack:\n", "fatal error: out of memory"),
        ("Error: unknown flag: --x\nUsage:\n", "Error: unknown flag: --x"),
        ("2026-11-27 10:00:00,000 CRITICAL kplane: no\n", "2026-11-27 10:00:00,000 CRITICAL kplane: no"),
        ("ready\nserving\n", ""),
        ("panic: " + "x" * 1000, "panic: " + "x" * 493),
    ],
)
def test_last_fatal_line_of_each_program(log: str, line: str) -> None:
    assert last_fatal_line(log) == line


def test_pod_that_ended_names_its_fatal_line_first() -> None:
    message = observation._end({"reason": "Error", "exitCode": 2, "message": "panic: no map\n" + "goroutine 1\n" * 100})
    assert message.startswith("Error, exit code 2: its last fatal line is: panic: no map; panic: no map\ngoroutine 1")
    assert (
        observation._end({"reason": "Error", "exitCode": 1, "message": "Error: no"}) == "Error, exit code 1: Error: no"
    )
