"""The former description of a component, which was ready last, and replaces a new description that fails."""

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
    """Command line and environment of a started process."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    digest: str

    @classmethod
    def of(cls, launch: Launch) -> Command:
        """Return the command of a launch."""
        return cls(launch.argv, launch.environment, launch.digest)


@dataclass(frozen=True, slots=True)
class Former:
    """A former command, with the files of its process."""

    command: Command
    files: Mapping[str, bytes] = field(repr=False)

    def fits(self, launch: Launch) -> bool:
        """Return whether the former command may run in place of `launch`: see `Component.fallback`."""
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
    """State before the start of a description: the former command, and whether the description was ready before."""

    former: Former | None
    served: bool


class Rollback:
    """Decides between the description of a component and the last description that was ready, if the former fails.

    A failed description is retried after a growing delay, from `initial_seconds` to `maximum_seconds`.
    """

    def __init__(self, *, initial_seconds: float, maximum_seconds: float) -> None:
        self.refused: Launch | None = None
        """The failed description, while the former command runs in its place."""
        self.refusal = ""
        """Reason for the failure."""
        self._last: Command | None = None
        """Command of the last start. Its files stay in the directory, even after a stop."""
        self._served = False
        """Whether a process of `_last` was ever ready."""
        self._former: Former | None = None
        """The command that was ready before `_last`, until `_last` is ready."""
        self._retries = Backoff(initial_seconds=initial_seconds, maximum_seconds=maximum_seconds)
        self._retry_at: float | None = None
        """Time of the retry of `refused`, on the loop's clock. None: the former command is not ready yet."""

    def adopt(self, command: Command) -> None:
        """Record a process of an earlier run as the last start, and as ready."""
        self._last, self._served = command, True

    def prepare(self, launch: Launch, *, read_files: ReadFiles) -> _Past:
        """Return the state for `begin`, while the files of the present process are still there. Raises OSError."""
        served = self._served and self._last is not None and self._last.digest == launch.digest
        former = self._read(read_files) if launch.component.fallback is not None and not served else None
        return _Past(former, served)

    def begin(self, past: _Past) -> None:
        """Record that the present process has ended for another description, and that its files are about to change.

        Call `begin` after `prepare`, which reads the files of the former command while they are in the directory.
        """
        self._former, self._served = past

    def note_start(self, launch: Launch) -> None:
        """Record the start of a process of this description."""
        self._last = Command.of(launch)

    def note_ready(self) -> None:
        """Record that the process is ready."""
        self._served = True
        if self.refused is None:
            self._former = None
            self._retries.reset()
        elif self._retry_at is None:
            # The delay begins once the former command is ready: a cause that keeps both from being ready is no fault of
            # the description.
            self._retry_at = _now() + self._retries.next_delay()

    def forget_refusal(self) -> bool:
        """Drop the refused description, which is not applied any more.

        Returns whether there was a refused description.
        """
        refused, self.refused, self.refusal = self.refused, None, ""
        return refused is not None

    def in_place_of(self, launch: Launch) -> Launch | None:
        """Return the former command in place of a refused description.

        None if it is not refused, or due for a retry.
        """
        if self.refused is None or self.refused.digest != launch.digest or self._former is None:
            return None
        if self._retry_at is not None and _now() >= self._retry_at:
            return None
        self.refused = launch
        return self._former.in_place_of(launch)

    def refuse(self, launch: Launch, why: str, *, read_files: ReadFiles) -> Launch | None:
        """Refuse a description before it starts, and return the launch that keeps running in its place.

        None if the present command may not replace the description, or was never ready. Raises OSError.
        """
        former = self._read(read_files) if self._served else None
        if former is None or not former.fits(launch):
            return None
        self._former, self._retry_at = former, None
        self.refused, self.refusal = launch, why
        return former.in_place_of(launch)

    def alternative(self, launch: Launch) -> Launch | None:
        """Return the alternative to a description that failed: the former command, or the refused description.

        So a mistaken description never ends a component that worked. A correct description is retried if both failed,
        for example because etcd was unavailable. None if there is no alternative.
        """
        if self._served or self._former is None:
            return None
        if self.refused is None and not self._former.fits(launch):
            return None
        return self.refused or self._former.in_place_of(launch)

    def change_over(self, following: Launch, *, failed: Launch, why: str) -> None:
        """Record that the alternative starts in place of a failed description."""
        self.refused, self.refusal = (failed, why) if self.refused is None else (None, "")
        self._last, self._retry_at = Command.of(following), None

    def _read(self, read_files: ReadFiles) -> Former | None:
        """Return the last command that was ready, with its files. Raises OSError."""
        if not self._served or self._last is None:
            return self._former
        return Former(self._last, read_files())


def _now() -> float:
    return asyncio.get_running_loop().time()
