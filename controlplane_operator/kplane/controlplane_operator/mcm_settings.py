"""How the operator was told to run an mcm for a registration of mode Dedicated."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kplane.api import ComputeResources, ResourceAmounts, quantity
from kplane.controlplane_operator.backends.mcm import MCM, MCM_RESOURCES, McmProgram
from kplane.controlplane_operator.errors import SettingsError
from kplane.workloads import Resources

__all__ = ["add_mcm_flags", "mcm_program", "why_no_mcm"]

_IN_IMAGE: Final = Path("/usr/local/bin")
"""Where kplane's image of mcm has kube-controller-manager and kube-scheduler."""
_NOT_TO_GIVE: Final = re.compile(
    r"-h|--|--(help|kubeconfig|state-dir|listen|(no-)?report-status|registration(-.*)?"
    r"|cluster-(source|kubeconfig-secret-template|namespace-scope|selector|sharding|shard-.*|lease-.*))"
)
"""Flags of mcm that the operator sets, and those of an mcm of many, which keep one for one from its start."""


def add_mcm_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; `--mcm-image` is one of those of pods."""
    group = parser.add_argument_group("for registrations of mode Dedicated, which have an mcm of their own")
    group.add_argument(
        "--mcm-program",
        type=Path,
        metavar="FILE",
        help="mcm, with --runtime process; it looks for kube-controller-manager in --programs-dir",
    )
    group.add_argument(
        "--mcm-arg",
        action="append",
        default=[],
        metavar="FLAG",
        help="one more flag of each mcm, such as --mcm-arg=--concurrent-gc-syncs=5; may be repeated",
    )
    group.add_argument(
        "--mcm-requests",
        metavar="AMOUNTS",
        help=f"what each mcm is sure to get as a pod (default: cpu={MCM_RESOURCES.cpu_request},"
        f"memory={MCM_RESOURCES.memory_request})",
    )
    group.add_argument(
        "--mcm-limits",
        metavar="AMOUNTS",
        help=f"what each mcm cannot exceed as a pod, with its instance (default: memory={MCM_RESOURCES.memory_limit})",
    )


def mcm_program(given: argparse.Namespace, *, directories: Sequence[Path]) -> McmProgram | None:
    """Return what the flags say; None where they name no mcm. Raises SettingsError with a sentence."""
    pods = given.runtime == "pods"
    resources = _resources(given.mcm_requests, given.mcm_limits)
    if pods and given.mcm_program is not None:
        raise SettingsError("--mcm-program: only --runtime process has this; pods have --mcm-image")
    if not pods and (resources is not None):
        raise SettingsError("--mcm-requests, --mcm-limits: only --runtime pods has this")
    program = (MCM if given.mcm_image else None) if pods else _executable(given.mcm_program)
    if program is None:
        if given.mcm_arg or resources is not None:
            needed = "--mcm-image" if pods else "--mcm-program"
            raise SettingsError(f"--mcm-arg, --mcm-requests, --mcm-limits: they are of no use without {needed}")
        return None
    return McmProgram(
        program=program,
        directories=(_IN_IMAGE,) if pods else tuple(directories),
        args=_args(given.mcm_arg),
        resources=resources or MCM_RESOURCES,
    )


def why_no_mcm(program: McmProgram | None, *, pods: bool) -> str | None:
    """Say in a sentence why registrations of mode Dedicated get no mcm, and what to do; None: they do."""
    if program is not None:
        return None
    flag = "--mcm-image, which Helm does unless mcm.reportStatus is false or mcm.source.kind another one"
    return (
        "spec.mode is Dedicated, and this operator was not told how to run an mcm for one registration: set spec.mode"
        f" to Shared, or start the operator with {flag if pods else '--mcm-program'}"
    )


def _args(given: Sequence[str]) -> tuple[str, ...]:
    for argument in given:
        flag = argument.partition("=")[0]
        if _NOT_TO_GIVE.fullmatch(flag):
            raise SettingsError(
                f"--mcm-arg={argument}: leave {flag} out; this operator says which registration an mcm serves, as whom"
                " and where, and it shares that with no other mcm"
            )
    return tuple(given)


def _executable(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file() or not os.access(path, os.X_OK):
        raise SettingsError(f"--mcm-program {path}: there is no such program")
    return str(path.absolute())


def _resources(requests: str | None, limits: str | None) -> Resources | None:
    """Return what was asked for; defaults give way to it: no request exceeds its limit."""
    if requests is None and limits is None:
        return None
    asked, bounds = _amounts("--mcm-requests", requests), _amounts("--mcm-limits", limits)
    try:
        ComputeResources(requests=asked, limits=bounds)
    except ValidationError:
        raise SettingsError("--mcm-limits must not be less than --mcm-requests") from None
    default = MCM_RESOURCES
    memory = asked.memory or _lower(default.memory_request, bounds.memory)
    return Resources(
        cpu_request=asked.cpu or _lower(default.cpu_request, bounds.cpu),
        memory_request=memory,
        memory_limit=bounds.memory or max(default.memory_limit, memory, key=quantity),
        cpu_limit=bounds.cpu,
    )


def _amounts(flag: str, text: str | None) -> ResourceAmounts:
    found: dict[str, str] = {}
    for part in text.split(",") if text is not None else ():
        name, separator, amount = part.partition("=")
        if name not in {"cpu", "memory"} or not separator or name in found:
            raise SettingsError(f"{flag} {text}: amounts are written like cpu=50m,memory=128Mi")
        found[name] = amount
    try:
        return ResourceAmounts.model_validate(found)
    except ValidationError as error:
        raise SettingsError(f"{flag} {text}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _lower(default: str, limit: str | None) -> str:
    return default if limit is None else min(default, limit, key=quantity)
