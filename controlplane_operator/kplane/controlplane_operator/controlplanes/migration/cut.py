"""The moment at which a control plane changes its home: writes wait, the former home is fenced, both are compared."""

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
"""Maximum time that writes wait for replicas of the gateway which do not take up the new address."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Writes wait, and both homes have the same."""

    began: float
    """By the monotonic clock."""
    comparison: Comparison
    """It takes a moment to make its digests: when writes continue."""


class Cutter:
    """Stops the writes of control planes, and lets them continue in another home, or in the former one."""

    def __init__(self, context: OperatorContext, *, homes: Callable[[ControlPlane], Movable]) -> None:
        self._context = context
        self._homes = homes

    async def stop_writes(self, control_plane: ControlPlane, follower: Follower, *, seconds: float) -> Cut:
        """Have writes wait and nothing change in the home, until the copy has all and is the same.

        `seconds` is how long that may take. Raises ConditionError if it does not come to that; then call `resume`.
        """
        began, held = time.monotonic(), False
        try:
            async with asyncio.timeout(seconds):
                if control_plane.status.hibernation is None:
                    # Else no API server runs, and the gateway has nothing to confirm.
                    await self._holds().begin(control_plane)
                held = True
                await self._homes(control_plane).set_writable(control_plane, writable=False)
                with data_errors():
                    comparison = await follower.catch_up()
                    if comparison.equal:
                        # From here on no copy writes there, also none of an operator that was cut off and comes back.
                        await follower.close()
        except TimeoutError:
            if not held:
                raise await self._not_held(control_plane, seconds=seconds) from None
            said = f"writes waited for {seconds:g} s, spec.migration.maxHold, and continue where they were"
            raise ConditionError(Reason.MIGRATING, said) from None
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
        """Return why the hold did not begin in time."""
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
        """Let writes continue where they were. It may be repeated. Raises ConditionError."""
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
    ) -> None:
        """Let writes continue in the new home, which the status names already, at the API server of `provision`.

        Not before every replica of the gateway leads there: otherwise clients of one would read in the former home
        what clients of another have changed. What fails here is done by the rest of the pass, or by the next one.
        """
        async with asyncio.timeout(_RELEASE_SECONDS):
            published = at_gateway(self._context, control_plane, provision=provision, chosen=chosen)
            await write_gateway_secret(self._context, control_plane, provision=published, chosen=chosen)
            await self._let_continue(control_plane, former=former)

    async def finish(self, control_plane: ControlPlane, *, former: ControlPlane) -> None:
        """Do what is left of a `release` that was cut off. Raises ConditionError."""
        if self._context.gateway is None or not self._holds().is_left(control_plane):
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._holds().redirect(control_plane)
                await self._let_continue(control_plane, former=former)
        except (ProviderError, TimeoutError) as error:
            raise ConditionError(Reason.MIGRATING, f"the writes cannot continue: {error}") from error

    async def _let_continue(self, control_plane: ControlPlane, *, former: ControlPlane) -> None:
        # While a control plane sleeps, no write waits, and no API server runs in the former home.
        holds = self._holds() if control_plane.status.hibernation is None else None
        if holds is not None and not await holds.followed(control_plane, seconds=_FOLLOW_SECONDS):
            # Clients that are still led there get an error, and read nothing that is old.
            await self._homes(former).seal(former)
        await self._homes(control_plane).set_writable(control_plane, writable=True)
        if holds is not None:
            await holds.end(control_plane)

    async def is_over(self, control_plane: ControlPlane) -> bool:
        """Tell whether every gateway leads to the home that the status names. Raises ConditionError."""
        if self._context.gateway is None:
            # An operator without a gateway leads no client to the former home.
            return True
        try:
            return await self._holds().are_over(control_plane)
        except ProviderError as error:
            raise ConditionError(Reason.MIGRATING, f"the gateways cannot be asked: {error}") from error

    def _holds(self) -> Holds:
        if self._context.gateway is None:
            raise ConditionError(Reason.MIGRATING, "the operator has no gateway any more, where writes could wait")
        return Holds(self._context, self._context.gateway)
