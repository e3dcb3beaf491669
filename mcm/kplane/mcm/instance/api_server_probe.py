"""The API server of one cluster as mcm itself sees it: whether an instance can, and may, work with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.reasons import Reason
from kplane.provider import ApiError, Client, ClusterConfig, NotFound, ProviderError
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.resources import LEASES
from kplane.provider.errors import KubeconfigError, ServerError

__all__ = ["APIServerProbe"]

_NAMESPACE: Final = "kube-system"
_LIMITS: Final = AnswerLimits(answer_bytes=256 * 1024, values=4096)
"""More than any Lease has: a hostile API server costs mcm no more."""
_DEFAULT_DURATION_SECONDS: Final = 15
_LONGEST_DURATION_SECONDS: Final = 600
_LONG_AGO: Final = timedelta(minutes=10)
"""So far no clock of a control plane is off: who has not renewed a Lease for so long is gone."""
_RENEWED: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")
_HOLDER_LENGTH: Final = 200


class _Sight(NamedTuple):
    """The Lease as it was seen, and since when it is so."""

    spec: str
    since: float


class APIServerProbe:
    """Looks at the API server of one cluster with one request: its answer, and whose the Lease in it is.

    kube-controller-manager and kube-scheduler elect a leader by the Lease of their name in kube-system, unless they
    are told not to, as instances are. So where it is held, by anybody, another one works on the same objects. It counts
    as held for as long as its holder asks for, from when it was seen to change last, by the clock of mcm: those of
    others may be off. Only one that was renewed more than ten minutes ago is taken for abandoned at the first look.

    `program` is the name of the Lease, `timeout_seconds` the deadline of one look, and `now` a clock in seconds that is
    replaced in tests.
    """

    def __init__(self, program: str, *, timeout_seconds: float = 5.0, now: Callable[[], float] | None = None) -> None:
        self._program = program
        self._timeout_seconds = timeout_seconds
        self._now = now or asyncio.get_running_loop().time
        self._client: Client | None = None
        self._sight: _Sight | None = None

    async def look(self, config: ClusterConfig) -> BlockingReason | None:
        """Return what is in the way of an instance now; None if there is nothing.

        An API server that answers, be it that it refuses this request, is not in the way: what an instance makes of
        that, its own exit tells.
        """
        try:
            client = await self._connect(config)
            lease = await client.get(LEASES, self._program, namespace=_NAMESPACE)
        except ServerError as error:
            return BlockingReason(
                Reason.API_SERVER_UNREACHABLE, f"its API server at {config.server} answers {error.status}: {error}"
            )
        except ApiError as error:
            if isinstance(error, NotFound):
                self._sight = None
            return None
        except KubeconfigError as error:
            return BlockingReason(Reason.CANNOT_START, f"invalid kubeconfig in its Secret: {error}")
        except ProviderError as error:
            return BlockingReason(Reason.API_SERVER_UNREACHABLE, f"its API server does not answer: {error}")
        return self._judge(lease.get("spec"))

    async def aclose(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _connect(self, config: ClusterConfig) -> Client:
        if self._client is not None and self._client.config != config:
            await self.aclose()
        if self._client is None:
            self._client = Client(
                config,
                timeout_seconds=self._timeout_seconds,
                connect_timeout_seconds=self._timeout_seconds,
                limits=_LIMITS,
            )
        return self._client

    def _judge(self, spec: Any) -> BlockingReason | None:
        spec = spec if isinstance(spec, Mapping) else {}
        holder = spec.get("holderIdentity")
        if not isinstance(holder, str) or not holder:
            self._sight = None
            return None
        # No field of a Lease has others in it, and what has may be nested too deeply to be written down.
        text = repr(sorted(item for item in spec.items() if not isinstance(item[1], (dict, list))))
        if self._sight is None:
            abandoned = _abandoned(spec.get("renewTime"))
            self._sight = _Sight(text, float("-inf") if abandoned else self._now())
        elif self._sight.spec != text:
            self._sight = _Sight(text, self._now())
        if self._now() - self._sight.since > _duration(spec.get("leaseDurationSeconds")):
            return None
        return BlockingReason(
            Reason.FOREIGN_CONTROLLER_MANAGER,
            f"another {self._program} works on this control plane: {holder[:_HOLDER_LENGTH]!r} holds the Lease"
            f" {_NAMESPACE}/{self._program}; stop it; mcm starts its instance when the Lease is released or expires",
        )


def _duration(value: Any) -> float:
    if not isinstance(value, int) or value <= 0:
        return _DEFAULT_DURATION_SECONDS
    return min(value, _LONGEST_DURATION_SECONDS)


def _abandoned(renewed: Any) -> bool:
    """Whether the Lease was renewed so long ago, by the clock of its holder, that no difference of clocks matters."""
    match = _RENEWED.fullmatch(renewed) if isinstance(renewed, str) else None
    if match is None:
        return False
    try:
        time = datetime.fromisoformat(f"{match[1]}+00:00")
    except ValueError:
        return False
    return datetime.now(UTC) - time > _LONG_AGO
