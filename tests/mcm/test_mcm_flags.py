"""Validation of flags by kube-controller-manager and kube-scheduler themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.flags import Flags, check_flags
from kplane.mcm.errors import ConfigurationError
from kplane.workloads import RuntimeFailure

PROGRAM = "kube-controller-manager"


async def check(*arguments: str, directories: Sequence[Path]) -> None:
    await check_flags(Flags.parse(arguments), program=PROGRAM, directories=directories)


def script(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / PROGRAM
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return directory


@pytest.mark.integration
@pytest.mark.parametrize(
    "arguments",
    [
        ("--concurrent-gc-syncs", "5", "--cluster-name=a"),
        ("--controllers=*,-job-controller",),
        ("--controllers", "garbage-collector-controller", "--controllers=job"),
        ("--use_service_account_credentials", "--feature-gates=AllBeta=false"),
        ("-v", "5"),
        ("--v=2", "--logging-format=json"),
    ],
    ids=" ".join,
)
async def test_flags_that_kube_controller_manager_accepts_pass(binaries: Any, arguments: tuple[str, ...]) -> None:
    await check(*arguments, directories=binaries.directories)
    with pytest.raises(ConfigurationError, match=f"/{PROGRAM} rejects its flags: unknown flag: --nope"):
        await check(*arguments, "--nope", directories=binaries.directories)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--nope",), "unknown flag: --nope"),
        (("-x",), "unknown shorthand flag: 'x' in -x"),
        (("--concurrent-gc-syncs=a",), 'invalid argument "a" for "--concurrent-gc-syncs" flag: strconv.ParseInt'),
        (("--concurrent-gc-syncs",), "flag needs an argument: --concurrent-gc-syncs"),
        (("--profiling", "false"), 'does not take any arguments, got ["false"]'),
        (("--feature-gates=Nope=true",), "unrecognized feature gate: Nope"),
        (("--logging-format=xml",), 'format: Invalid value: "xml": Unsupported log format'),
        (("--controllers=*,nope",), '"nope" is not in the list of known controllers'),
        (("--controllers=nope", "-v=3"), '"nope" is not in the list of known controllers'),
        (("--controllers=nope", "--logging-format=json"), '"nope" is not in the list of known controllers'),
    ],
    ids=" ".join,
)
async def test_rejected_flag_is_refused_with_the_message_of_the_program(
    binaries: Any, arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"/{PROGRAM} rejects its flags: .*{re.escape(says)}"):
        await check(*arguments, directories=binaries.directories)


@pytest.mark.integration
async def test_flags_are_checked_by_every_version(binaries: Any, tmp_path: Path) -> None:
    older = script(tmp_path / "older", 'echo "Error: unknown flag: --cluster-name" >&2; exit 1')
    with pytest.raises(ConfigurationError, match=f"{older}/{PROGRAM} rejects its flags: unknown flag: --cluster-name"):
        await check("--cluster-name=a", directories=[*binaries.directories, older])


async def test_flags_are_refused_if_the_program_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot validate flags: {PROGRAM} not found in {tmp_path};"):
        await check("--cluster-name=a", directories=[tmp_path])


@pytest.mark.parametrize("text", ["exit 0", "echo something else >&2; exit 3"])
async def test_unexpected_output_of_the_program_fails_the_check(tmp_path: Path, text: str) -> None:
    with pytest.raises(RuntimeFailure, match="failed to validate flags with"):
        await check("--cluster-name=a", directories=[script(tmp_path, text)])


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--config=/a", "for other profiles run a kube-scheduler of your own"),
        ("--kubeconfig=/a", "connects to the control plane of its own registration"),
        ("--leader_elect=true", "mcm sets --leader-elect of kube-scheduler itself"),
        ("--write-config-to=/a", "instances would print it and end"),
        ("-v=5", "give one flag with its value each time"),
        ("100", "give one flag with its value each time"),
    ],
)
def test_scheduler_flags_that_mcm_cannot_pass_on_are_refused(argument: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Flags.parse_scheduler(["--v=2", argument])


@pytest.mark.integration
async def test_scheduler_flags_are_checked_by_kube_scheduler(binaries: Any) -> None:
    flags = Flags.parse_scheduler(["--kube-api-qps=100", "--feature-gates=AllAlpha=false", "--v=2"])
    await check_flags(flags, program="kube-scheduler", directories=binaries.directories)
    with pytest.raises(ConfigurationError, match="unknown flag: --concurrent-gc-syncs"):
        await check_flags(
            Flags.parse_scheduler(["--concurrent-gc-syncs=5"]),
            program="kube-scheduler",
            directories=binaries.directories,
        )
