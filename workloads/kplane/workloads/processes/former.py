"""What a component goes back to if its new description fails: the last one whose process was ready."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kplane.provider.aio.backoff import Backoff
from kplane.workloads.component import File
from kplane.workloads.processes.launch import Launch

__all__ = ["Command", "Former", "Rollback"]

ReadFiles = Callable[[], Mapping[str, bytes]]
"""Reads the files of a component from its directory. Raises OSError."""


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


class _Past(NamedTuple):
    """What is known of the descriptions before one that is about to start."""

    former: Former | None
    served: bool


class Rollback:
    """Decides between the description of a component and the last one that was ready, if the described one fails.

    A description that failed is tried again after a growing wait, from `initial_seconds` to `maximum_seconds`.
    """

    def __init__(self, *, initial_seconds: float, maximum_seconds: float) -> None:
        self.refused: Launch | None = None
        """What is described, while the former one runs in its place."""
        self.refusal = ""
        """Why."""
        self._last: Command | None = None
        """The last one that was started; its files are in the directory, also after a stop."""
        self._served = False
        """Whether a process of `_last` was ever ready."""
        self._former: Former | None = None
        """What was ready before `_last`, as long as `_last` is not."""
        self._retries = Backoff(initial_seconds=initial_seconds, maximum_seconds=maximum_seconds)
        self._retry_at: float | None = None
        """When the refused one is retried, on the loop's clock. None: not before the former one is ready."""

    def adopt(self, command: Command) -> None:
        """Take note of a process of an earlier run, which counts as one that was ready."""
        self._last, self._served = command, True

    def prepare(self, launch: Launch, *, read_files: ReadFiles) -> _Past:
        """Return what `begin` needs, as long as the files of the present process are there. Raises OSError."""
        served = self._served and self._last is not None and self._last.digest == launch.digest
        former = self._read(read_files) if launch.component.fallback is not None and not served else None
        return _Past(former, served)

    def begin(self, past: _Past) -> None:
        """Take note that the present process has ended for another description, and the files change.

        Not earlier: those of the former one are read from the directory only while it is the last one.
        """
        self._former, self._served = past

    def note_start(self, launch: Launch) -> None:
        """Take note that a process of this description was started."""
        self._last = Command.of(launch)

    def note_ready(self) -> None:
        """Take note that the process is ready."""
        self._served = True
        if self.refused is None:
            self._former = None
            self._retries.reset()
        elif self._retry_at is None:
            # Not earlier: what keeps both from being ready is no fault of the description.
            self._retry_at = _now() + self._retries.next_delay()

    def forget_refusal(self) -> bool:
        """The refused description is not asked for any more. Returns whether there was one."""
        refused, self.refused, self.refusal = self.refused, None, ""
        return refused is not None

    def in_place_of(self, launch: Launch) -> Launch | None:
        """Return what runs in place of a description that was refused; None if it was not, or is to be retried."""
        if self.refused is None or self.refused.digest != launch.digest or self._former is None:
            return None
        if self._retry_at is not None and _now() >= self._retry_at:
            return None
        self.refused = launch
        return self._former.in_place_of(launch)

    def refuse(self, launch: Launch, why: str, *, read_files: ReadFiles) -> Launch | None:
        """Refuse a description before it starts, and return the one that runs on in its place.

        None if that one may not run in its place, or was never ready. Raises OSError.
        """
        former = self._read(read_files) if self._served else None
        if former is None or not former.fits(launch):
            return None
        self._former, self._retry_at = former, None
        self.refused, self.refusal = launch, why
        return former.in_place_of(launch)

    def alternative(self, launch: Launch) -> Launch | None:
        """Return the other of two descriptions, if one ended before it was ready: the former one, or the refused one.

        So a description with a mistake never costs a component that worked, and one without is tried again where both
        failed, for example because etcd was away.
        """
        if self._served or self._former is None:
            return None
        if self.refused is None and not self._former.fits(launch):
            return None
        return self.refused or self._former.in_place_of(launch)

    def change_over(self, following: Launch, *, failed: Launch, why: str) -> None:
        """Take note that the alternative starts in place of one that failed."""
        self.refused, self.refusal = (failed, why) if self.refused is None else (None, "")
        self._last, self._retry_at = Command.of(following), None

    def _read(self, read_files: ReadFiles) -> Former | None:
        """Return the last description that was ready. Raises OSError."""
        if not self._served or self._last is None:
            return self._former
        return Former(self._last, read_files())


def _now() -> float:
    return asyncio.get_running_loop().time()
