"""Flags of kube-controller-manager: itself says which it knows."""

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
async def test_what_kube_controller_manager_takes_is_let_pass(binaries: Any, arguments: tuple[str, ...]) -> None:
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
async def test_what_it_refuses_is_refused_with_its_own_words(
    binaries: Any, arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"/{PROGRAM} rejects its flags: .*{re.escape(says)}"):
        await check(*arguments, directories=binaries.directories)


@pytest.mark.integration
async def test_every_version_is_asked(binaries: Any, tmp_path: Path) -> None:
    older = script(tmp_path / "older", 'echo "Error: unknown flag: --cluster-name" >&2; exit 1')
    with pytest.raises(ConfigurationError, match=f"{older}/{PROGRAM} rejects its flags: unknown flag: --cluster-name"):
        await check("--cluster-name=a", directories=[*binaries.directories, older])


async def test_without_the_program_flags_are_not_taken_on_trust(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot validate flags: {PROGRAM} not found in {tmp_path};"):
        await check("--cluster-name=a", directories=[tmp_path])


@pytest.mark.parametrize("text", ["exit 0", "echo something else >&2; exit 3"])
async def test_a_program_that_answers_otherwise_is_not_understood(tmp_path: Path, text: str) -> None:
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
def test_flags_of_the_scheduler_that_mcm_sets_itself_are_refused(argument: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Flags.parse_scheduler(["--v=2", argument])


@pytest.mark.integration
async def test_kube_scheduler_says_which_flags_it_knows(binaries: Any) -> None:
    known = Flags.parse_scheduler(["--kube-api-qps=100", "--feature-gates=AllAlpha=false", "--v=2"])
    await check_flags(known, program="kube-scheduler", directories=binaries.directories)
    with pytest.raises(ConfigurationError, match="unknown flag: --concurrent-gc-syncs"):
        await check_flags(
            Flags.parse_scheduler(["--concurrent-gc-syncs=5"]),
            program="kube-scheduler",
            directories=binaries.directories,
        )
