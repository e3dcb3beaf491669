"""The cut of a migration: writes are held, the former home is fenced, both homes are compared, and writes continue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Movable, Provision, data_errors
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.gateway import at_gateway, write_gateway_secret
from kplane.controlplane_operator.controlplanes.gateway_replicas import Replica
from kplane.controlplane_operator.controlplanes.migration.hold import Holds
from kplane.controlplane_operator.controlplanes.migration.in_flight import describe_waits
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data.follow import Comparison, Follower
from kplane.provider import ProviderError

__all__ = ["Cut", "Cutter"]

_RELEASE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 2.0
_FOLLOW_SECONDS: Final = 2.0
"""Maximum time that writes wait for replicas of the gateway that do not route to the new address."""


@dataclass(frozen=True, slots=True)
class Cut:
    """State of a cut at which writes are stopped and both homes have equal data."""

    began: float
    """Start of the hold, by the monotonic clock."""
    comparison: Comparison
    """Comparison of both homes. Its digests are computed later, when writes continue, because that takes a moment."""


class Cutter:
    """Stops the writes of control planes, and releases them in the new or the former home."""

    def __init__(self, context: OperatorContext, *, homes: Callable[[ControlPlane], Movable]) -> None:
        self._context = context
        self._homes = homes

    async def stop_writes(self, control_plane: ControlPlane, follower: Follower, *, seconds: float) -> Cut:
        """Hold the writes and fence the home, until the copy is complete and equal.

        `seconds` is the maximum time for this. Raises ConditionError if it fails or takes longer; call `resume` then.
        """
        began, held = time.monotonic(), False
        try:
            async with asyncio.timeout(seconds):
                if control_plane.status.hibernation is None:
                    # While the control plane sleeps, no API server runs, and the gateway has no writes to hold.
                    await self._holds().begin(control_plane)
                held = True
                await self._homes(control_plane).set_writable(control_plane, writable=False)
                with data_errors():
                    comparison = await follower.catch_up()
                    if comparison.equal:
                        # From here on no copy writes to the new home, not even the copy of an operator that was
                        # suspended.
                        await follower.close()
        except TimeoutError:
            if not held:
                raise await self._not_held(control_plane, seconds=seconds) from None
            message = f"writes waited for {seconds:g} s, spec.migration.maxHold, and continue where they were"
            raise ConditionError(Reason.MIGRATING, message) from None
        except ProviderError as error:
            raise ConditionError(Reason.MIGRATING, f"the writes cannot be held: {error}") from error
        if not comparison.equal:
            source, target = comparison.source, comparison.target
            raise ConditionError(
                Reason.MIGRATING,
                f"the homes differ: {source.count} keys with SHA-256 {source.sha256}, and {target.count} with"
                f" {target.sha256} in the new one",
            )
        return Cut(began, comparison)

    async def _not_held(self, control_plane: ControlPlane, *, seconds: float) -> ConditionError:
        """Return the reason why the hold did not begin in time."""
        replicas: list[Replica] = []
        with contextlib.suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                replicas = await self._holds().unconfirmed(control_plane)
        return ConditionError(
            Reason.MIGRATING,
            f"failed to hold the writes within {seconds:g} s, spec.migration.maxHold:"
            f" {describe_waits(replicas, uid=control_plane.metadata.uid or '', now=datetime.now(UTC))}."
            " Writes continue where they were",
        )

    async def resume(self, control_plane: ControlPlane) -> None:
        """Release the writes in the present home. The call may be repeated.

        Raises ConditionError if etcd or the gateway refuses.
        """
        await self._homes(control_plane).set_writable(control_plane, writable=True)
        if self._context.gateway is None:
            return
        try:
            await self._holds().end(control_plane)
        except ProviderError as error:
            raise ConditionError(Reason.MIGRATING, f"the writes cannot continue: {error}") from error

    async def release(
        self,
        control_plane: ControlPlane,
        *,
        former: ControlPlane,
        provision: Provision,
        chosen: ControlPlaneClass | None,
    ) -> bool:
        """Release the writes in the new home, which the status names already, at the API server of `provision`.

        The release waits until every replica of the gateway routes to the new home. Otherwise some clients would read
        old data in the former home. If the release fails, the rest of this pass or the next pass completes it.

        Returns whether every replica does. Otherwise the former home is sealed, and the caller has to retire it: its
        API server still answers some reads from its cache, and keeps watches open.
        """
        async with asyncio.timeout(_RELEASE_SECONDS):
            published = at_gateway(self._context, control_plane, provision=provision, chosen=chosen)
            await write_gateway_secret(self._context, control_plane, provision=published, chosen=chosen)
            return await self._let_continue(control_plane, former=former)

    async def finish(self, control_plane: ControlPlane, *, former: ControlPlane) -> None:
        """Complete a `release` that was cut off. Raises ConditionError if that fails."""
        if self._context.gateway is None or not self._holds().is_left(control_plane):
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._holds().redirect(control_plane)
                await self._let_continue(control_plane, former=former)
        except (ProviderError, TimeoutError) as error:
            raise ConditionError(Reason.MIGRATING, f"the writes cannot continue: {error}") from error

    async def _let_continue(self, control_plane: ControlPlane, *, former: ControlPlane) -> bool:
        # A sleeping control plane has no held writes, and no API server in the former home.
        holds = self._holds() if control_plane.status.hibernation is None else None
        followed = holds is None or await holds.followed(control_plane, seconds=_FOLLOW_SECONDS)
        if not followed:
            # Clients that are still routed to the former home then get an error instead of old data.
            await self._homes(former).seal(former)
        await self._homes(control_plane).set_writable(control_plane, writable=True)
        if holds is not None:
            await holds.end(control_plane)
        return followed

    async def is_followed(self, control_plane: ControlPlane) -> bool:
        """Return whether every replica of the gateway serves the present route now, also those with an expired Lease.

        Raises ConditionError if that is unknown.
        """
        if self._context.gateway is None:
            return True
        try:
            return await self._holds().followed(control_plane, seconds=0.0)
        except ProviderError as error:
            raise ConditionError(Reason.MIGRATING, f"the gateways cannot be asked: {error}") from error

    async def is_over(self, control_plane: ControlPlane) -> bool:
        """Return whether every replica of the gateway routes to the home in the status.

        Raises ConditionError if that is unknown.
        """
        if self._context.gateway is None:
            # Without a gateway, no client is routed to the former home.
            return True
        try:
            return await self._holds().are_over(control_plane)
        except ProviderError as error:
            raise ConditionError(Reason.MIGRATING, f"the gateways cannot be asked: {error}") from error

    def _holds(self) -> Holds:
        if self._context.gateway is None:
            raise ConditionError(Reason.MIGRATING, "the operator has no gateway any more, where writes could wait")
        return Holds(self._context, self._context.gateway)
