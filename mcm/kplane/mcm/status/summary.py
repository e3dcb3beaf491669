"""What the instances of one cluster come to as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kplane.mcm.describe.kinds import InstanceKind
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.reasons import Reason

__all__ = ["Summary", "foremost", "summarize"]


class Summary(NamedTuple):
    """What a registration is told of its instances."""

    reason: Reason
    message: str


def foremost(instances: Sequence[Instance]) -> Instance:
    """Return the one that is to be told of: the first of those that are furthest from running."""
    return max(instances, key=lambda each: _RANKS.get(each.reason, _RANK_OF_TROUBLE))


_RANK_OF_TROUBLE: Final = 2
_RANKS: Final[Mapping[Reason | None, int]] = {Reason.INSTANCE_RUNNING: 0, Reason.STARTING: 1, None: 3}


def summarize(instances: Sequence[Instance]) -> Summary | None:
    """Tell whether all run, else why one does not; None while that is about to change.

    Where controllers are all there is, the message has no more than what the instance says.
    """
    shown = foremost(instances)
    reason = shown.reason
    if reason is None:
        return None
    if [each.kind for each in instances] == [InstanceKind.CONTROLLERS]:
        return Summary(reason, shown.message)
    if shown.message:
        return Summary(reason, f"{shown.kind.program}: {shown.message}")
    programs = [each.kind.program for each in instances]
    sentences = {
        Reason.INSTANCE_RUNNING: " and ".join(programs) + (" run" if len(programs) > 1 else " runs"),
        Reason.STARTING: f"{shown.kind.program} is starting",
    }
    return Summary(reason, sentences.get(reason, shown.kind.program))
