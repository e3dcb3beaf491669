"""What a component goes back to if its new description fails: the last one whose process was ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from kplane.workloads.component import File
from kplane.workloads.processes.launch import Launch

__all__ = ["Command", "Former"]


@dataclass(frozen=True, slots=True)
class Command:
    """How a process was started."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    digest: str

    @classmethod
    def of(cls, launch: Launch) -> Command:
        """Return the command of a launch."""
        return cls(launch.argv, launch.environment, launch.digest)


@dataclass(frozen=True, slots=True)
class Former:
    """A command, with the files that its process had."""

    command: Command
    files: Mapping[str, bytes] = field(repr=False)

    def fits(self, launch: Launch) -> bool:
        """Return whether the component may run as before in place of `launch`: see `Component.fallback`."""
        component, fallback = launch.component, launch.component.fallback
        return (
            fallback is not None
            and set(fallback.arguments) <= set(self.command.argv)
            and all(self.files.get(name) == component.files[name].content for name in fallback.files)
        )

    def in_place_of(self, launch: Launch) -> Launch:
        """Return the former command as a launch, with the probes of `launch` and the files that programs reload."""
        fresh = launch.component.files
        files = {
            name: fresh[name] if name in fresh and fresh[name].reloaded else File(content)
            for name, content in self.files.items()
        }
        return dataclasses.replace(
            launch,
            component=dataclasses.replace(launch.component, files=files),
            argv=self.command.argv,
            environment=self.command.environment,
            digest=self.command.digest,
        )
