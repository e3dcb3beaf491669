"""Launch of a component: its description, validated and resolved for one directory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kplane.workloads.component import DATA, FILES, SCRATCH, Component, Lifetime
from kplane.workloads.errors import ProgramFailed, ProgramTimedOut, RuntimeFailure
from kplane.workloads.last_words import last_fatal_line
from kplane.workloads.processes import launcher
from kplane.workloads.processes.directory import ComponentDirectory
from kplane.workloads.processes.proctable import DIGEST_VARIABLE, MARKER_VARIABLE
from kplane.workloads.processes.program import find_program, run_program

__all__ = ["Launch", "check_name", "is_name", "prepare_launch", "refusal"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LOG_ROOM: Final = 4
"""Multiple of a log's limit at which the kernel refuses writes.

A log is truncated some time after it reaches its limit.
"""
_CHECK_SECONDS: Final = 15.0
_FILE_NAME = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,200}")


@dataclass(frozen=True, slots=True)
class Launch:
    """A program ready to be started."""

    component: Component
    argv: tuple[str, ...]
    environment: dict[str, str]
    digest: str
    """Digest of all settings that a running process cannot adopt without a restart."""
    check: tuple[str, ...]
    """Command that validates the program's arguments; empty if the program cannot validate them."""
    tls: ssl.SSLContext | None = field(compare=False)
    """TLS context of the readiness probe; None for plain HTTP, or without a probe."""


def is_name(name: str) -> bool:
    """Return whether a string is a valid name of a component."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raise RuntimeFailure unless the string is a valid name of a component."""
    if not is_name(name):
        raise RuntimeFailure(
            f"{name!r} cannot be the name of a component: at most 63 lower-case letters, digits and inner hyphens."
        )


def prepare_launch(
    component: Component,
    *,
    directory: ComponentDirectory,
    programs: Sequence[Path],
    log_limit_bytes: int,
) -> Launch:
    """Validate and resolve a description. Raises RuntimeFailure, which names the component, the field and the error."""
    check_name(component.name)
    _check_placeholders(component)
    _check_files(component)
    program = find_program(component.program, programs=programs, of=f"Component {component.name}")
    digest = _digest(component, program=program)
    places = {FILES: str(directory.files), DATA: str(directory.data), SCRATCH: str(directory.scratch)}
    arguments = tuple(_substitute(arg, places=places) for arg in component.args)
    argv: tuple[str, ...] = (str(program), *arguments)
    check = (str(program), *component.check, *arguments) if component.check else ()
    if component.lifetime is Lifetime.BOUND:
        file_bytes = str(_LOG_ROOM * log_limit_bytes) if component.only_logs else ""
        paths = _paths(component, directory=directory, program=program, programs=programs)
        argv = (sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), file_bytes, *paths, *argv)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", str(directory.path)),
        **{name: _substitute(value, places=places) for name, value in component.env.items()},
        MARKER_VARIABLE: str(directory.path),
        DIGEST_VARIABLE: digest,
    }
    return Launch(
        component=component,
        argv=argv,
        environment=environment,
        digest=digest,
        check=check,
        tls=_probe_tls(component),
    )


async def refusal(launch: Launch) -> str | None:
    """Return the reason why a program refuses its arguments; None if it accepts them, or cannot validate them."""
    if not launch.check:
        return None
    program, *arguments = launch.check
    try:
        await run_program(Path(program), arguments, timeout_seconds=_CHECK_SECONDS)
    except ProgramTimedOut:
        return None
    except ProgramFailed as failure:
        # Without an exit code of its own, the program did not start, or a signal ended it: it has not judged its
        # arguments.
        if failure.exit_code is None or failure.exit_code <= 0:
            return None
        fatal = last_fatal_line(failure.stderr.decode(errors="replace"))
        return f"{Path(program).name} refuses its arguments: {fatal}" if fatal else str(failure)
    return None


def _paths(
    component: Component, *, directory: ComponentDirectory, program: Path, programs: Sequence[Path]
) -> tuple[str, ...]:
    """Return the paths that a component may access besides the machine's own files, as arguments of the launcher."""
    if component.reads is None:
        return ("",)
    # A program may be a script that runs the program of the same name in another directory.
    alike = dict.fromkeys((program, *(path.absolute() / program.name for path in programs)))
    # Not the directory itself: the supervisor reads and writes files in it, such as the log.
    own = (*([directory.data] if component.data else ()), *([directory.scratch] if component.scratch else ()))
    read = (*alike, directory.files, *component.reads)
    paths = (*(f"r{path}" for path in read), *(f"w{path}" for path in own))
    return str(len(paths)), *paths


def _substitute(text: str, *, places: dict[str, str]) -> str:
    for placeholder, place in places.items():
        text = text.replace(placeholder, place)
    return text


def _check_placeholders(component: Component) -> None:
    texts = (*component.args, *component.env.values())
    for placeholder, field_name, there in ((DATA, "data", component.data), (SCRATCH, "scratch", component.scratch)):
        if not there and any(placeholder in text for text in texts):
            raise RuntimeFailure(f"Component {component.name}: {placeholder} is used, but {field_name} is not set.")
    for name in (MARKER_VARIABLE, DIGEST_VARIABLE):
        if name in component.env:
            raise RuntimeFailure(
                f"Component {component.name}: env must not set {name}, which marks supervised processes."
            )
    if any("\0" in text for text in (*texts, *component.env)):
        raise RuntimeFailure(f"Component {component.name}: args and env must not contain NUL characters.")


def _check_files(component: Component) -> None:
    for name in component.files:
        if not _FILE_NAME.fullmatch(name):
            raise RuntimeFailure(
                f"Component {component.name}: {name!r} in files is no plain file name"
                " (letters, digits, '-', '.', '_', the first one a letter or digit)."
            )


def _probe_tls(component: Component) -> ssl.SSLContext | None:
    probe = component.readiness
    if probe is None:
        return None
    if all(port.name != probe.port for port in component.ports):
        raise RuntimeFailure(f"Component {component.name}: readiness names port {probe.port!r}, which is not in ports.")
    if probe.ca is None:
        return None
    if probe.ca not in component.files:
        raise RuntimeFailure(f"Component {component.name}: readiness names file {probe.ca!r}, which is not in files.")
    try:
        return ssl.create_default_context(cadata=component.files[probe.ca].content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise RuntimeFailure(
            f"Component {component.name}: file {probe.ca!r}, which readiness names, holds no CA certificate in PEM."
        ) from error


def _digest(component: Component, *, program: Path) -> str:
    files = {
        name: "reloaded" if file.reloaded else hashlib.sha256(file.content).hexdigest()
        for name, file in component.files.items()
    }
    description = [
        str(program),
        component.args,
        files,
        dict(component.env),
        component.data,
        component.lifetime.value,
        # These keys are omitted if unset, so that the digests of running components stay the same after an upgrade.
        *(["only logs"] if component.only_logs else []),
        *([component.open_files] if component.open_files is not None else []),
        *(["reads", component.reads] if component.reads is not None else []),
    ]
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:32]
