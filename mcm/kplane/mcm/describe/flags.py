"""Flags of kube-controller-manager and kube-scheduler on mcm's own command line. They apply to every instance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kplane.mcm.describe.flag_check import dry_run
from kplane.mcm.describe.programs import find_programs
from kplane.mcm.errors import ConfigurationError

__all__ = ["NO_FLAGS", "Flags", "check_flags"]

_CONTROLLERS: Final = "controllers"

_CONNECTION: Final = "each instance connects to the control plane of its own registration"
_ENDPOINT: Final = "mcm gives each instance a port and a certificate for its health check"
_CALLERS: Final = "mcm decides who may ask an instance, and only mcm does"
_LEADER: Final = "mcm holds the Lease of an instance in its control plane"
_KEYS: Final = "the keys of a control plane come from the Secret of its registration"
_ASIDE: Final = "instances would print it and end; ask the program itself"

_OWNED: Final = {
    "kubeconfig": _CONNECTION,
    "master": _CONNECTION,
    "authentication-kubeconfig": _CONNECTION,
    "authorization-kubeconfig": _CONNECTION,
    "bind-address": _ENDPOINT,
    "cert-dir": _ENDPOINT,
    "permit-address-sharing": _ENDPOINT,
    "permit-port-sharing": _ENDPOINT,
    "secure-port": _ENDPOINT,
    "tls-cert-file": _ENDPOINT,
    "tls-private-key-file": _ENDPOINT,
    "tls-sni-cert-key": _ENDPOINT,
    "authentication-skip-lookup": _CALLERS,
    "authentication-tolerate-lookup-failure": _CALLERS,
    "authorization-always-allow-paths": _CALLERS,
    "client-ca-file": _CALLERS,
    "enable-leader-migration": _LEADER,
    "leader-migration-config": _LEADER,
    "root-ca-file": _KEYS,
    "service-account-private-key-file": _KEYS,
    "help": _ASIDE,
    "version": _ASIDE,
}
_OWNED_FAMILIES: Final = (
    (re.compile(r"leader-elect(-.*)?"), _LEADER),
    (re.compile(r"requestheader-.*"), _CALLERS),
    (re.compile(r"cluster-signing-(.+-)?(cert|key)-file"), _KEYS),
)
_OWNED_OF_SCHEDULER: Final = {
    "config": "the file sets the API server and leader election, which mcm sets; for other profiles run a"
    " kube-scheduler of your own",
    "write-config-to": _ASIDE,
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags for all instances of a program, besides the flags that mcm and the registrations set."""

    arguments: tuple[str, ...] = ()
    """Arguments as given, in order, without `--controllers`."""
    controllers: tuple[str, ...] = ()
    """Value of `--controllers`: the default of registrations and classes without controllers. Empty: not given."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Flags:
        """Parse the flags of kube-controller-manager. Raises ConfigurationError for a flag that mcm sets itself.

        Only kube-controller-manager knows whether the other flags exist: see `check_flags`.
        """
        kept: list[str] = []
        controllers: list[str] | None = None
        rest = iter(arguments)
        for argument in rest:
            name = _name(argument)
            if (reason := _why_owned(name)) is not None:
                raise ConfigurationError(f"mcm sets --{name} itself: {reason}")
            if argument == "--":
                raise ConfigurationError("remove --: every argument has to be a flag")
            if name != _CONTROLLERS:
                kept.append(argument)
                continue
            # As in kube-controller-manager, a second `--controllers` adds to the first.
            _, separator, value = argument.partition("=")
            controllers = controllers or []
            controllers += [item for item in (value if separator else next(rest, "")).split(",") if item]
        if controllers is not None and all(item.startswith("-") for item in controllers):
            raise ConfigurationError("--controllers has none run; name some, or '*' for all that are on by default")
        return cls(tuple(kept), tuple(controllers or ()))

    @classmethod
    def parse_scheduler(cls, arguments: Sequence[str]) -> Flags:
        """Parse flags of kube-scheduler, each with its value. Raises ConfigurationError for flags that mcm sets itself.

        Only kube-scheduler knows whether the other flags exist: see `check_flags`.
        """
        for argument in arguments:
            if not argument.startswith("--") or argument == "--":
                raise ConfigurationError(
                    f"cannot parse --scheduler-flag={argument}: give one flag with its value each time, such as"
                    " --scheduler-flag=--kube-api-qps=100"
                )
            name = _name(argument)
            if (reason := _OWNED_OF_SCHEDULER.get(name) or _why_owned(name)) is not None:
                raise ConfigurationError(f"mcm sets --{name} of kube-scheduler itself: {reason}")
        return cls(tuple(arguments))

    def __bool__(self) -> bool:
        """Whether any flag is given."""
        return bool(self.arguments or self.controllers)

    def over(self, defaults: Sequence[str]) -> tuple[str, ...]:
        """Return these flags after the defaults, each `--name=value`, that these flags do not override."""
        names = {_name(argument) for argument in self.arguments}
        return (*(default for default in defaults if _name(default) not in names), *self.arguments)

    def paths(self) -> tuple[str, ...]:
        """Return the absolute paths among the values, such as the file of `--cloud-config`."""
        values = (argument.partition("=")[2] if "=" in argument else argument for argument in self.arguments)
        return tuple(value for value in values if value.startswith("/"))


NO_FLAGS: Final = Flags()


async def check_flags(flags: Flags, *, program: str, directories: Sequence[Path]) -> None:
    """Validate these flags, if there are any, with every version of the program in these directories.

    Raises ConfigurationError with the program's own error if a program rejects the flags, and if no program is found.
    Raises RuntimeFailure if a program cannot be run.
    """
    if not flags:
        return
    paths = find_programs(program, directories=directories)
    if not paths:
        places = ", ".join(str(directory) for directory in directories)
        raise ConfigurationError(f"cannot validate flags: {program} not found in {places}; check --programs-dir")
    question = list(flags.arguments)
    if flags.controllers:
        question.append(f"--controllers={','.join(flags.controllers)}")
    for path in paths:
        if (refusal := await dry_run(path, question)) is not None:
            raise ConfigurationError(f"{path} rejects its flags: {refusal}")


def _name(argument: str) -> str:
    """Return the name of a flag as kube-controller-manager understands it: an underscore counts as a hyphen."""
    if not argument.startswith("--"):
        return "help" if argument == "-h" else ""
    return argument[2:].partition("=")[0].replace("_", "-")


def _why_owned(name: str) -> str | None:
    if (reason := _OWNED.get(name)) is not None:
        return reason
    return next((reason for pattern, reason in _OWNED_FAMILIES if pattern.fullmatch(name)), None)
