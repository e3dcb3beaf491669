"""Authorities of API servers that are exchanged under instances: which of them a process may not know yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from kplane.api import KubernetesVersion
from kplane.mcm.describe.flags import Flags
from kplane.provider import Client, ClusterConfig, ProviderError, Unreachable
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.resources import LEASES

__all__ = ["Trust", "follows_authority"]

_FIRST: Final = KubernetesVersion(1, 36, 0)
_DOUBTFUL: Final = ("ClientsAllowCARotation", "AllBeta", "emulated-version")
_READ_AGAIN_SECONDS: Final = 5 * 60.0 + 10.0
"""client-go looks before a request whether the file has changed, every five minutes (transport/ca_rotation.go)."""
_FORMER: Final = 8
_TIMEOUT_SECONDS: Final = 5.0
_LIMITS: Final = AnswerLimits(answer_bytes=256 * 1024, values=4096)


def follows_authority(version: KubernetesVersion | None, *, flags: Flags) -> bool:
    """Whether a program reads the authority of its API server again by itself: client-go does so from 1.36 on.

    Where its version is not known, or somebody's flags may have turned that off, it does not.
    """
    told = any(word in argument for argument in flags.arguments for word in _DOUBTFUL)
    return version is not None and version >= _FIRST and not told


class _Former(NamedTuple):
    authority: bytes | None
    until: float
    """From then on no request is made by it any more."""


class Trust:
    """Knows by which authorities one process may verify its API server: those that its file has had for minutes.

    A new one need not be known as long as the server's certificate is signed by one that is, which is how authorities
    are exchanged: both are in the file while the certificate is replaced. `now` is a clock in seconds.
    """

    def __init__(self, *, now: Callable[[], float] | None = None) -> None:
        self._now = now or asyncio.get_running_loop().time
        self._pid: int | None = None
        self._present: bytes | None = None
        self._former: deque[_Former] = deque(maxlen=_FORMER)

    def note(self, authority: bytes | None, *, before: int | None, after: int | None) -> None:
        """Take note of what the file has now, and of the process before and after it was written, by number."""
        if after is None or after != before or after != self._pid:
            # It began after the file was written, now or the last time.
            self._former.clear()
        if after is not None and after == before and authority != self._present:
            self._former.append(_Former(self._present, self._now() + _READ_AGAIN_SECONDS))
        self._pid, self._present = after, authority

    async def outdated(self, config: ClusterConfig, *, pid: int | None) -> bool:
        """Whether the process may know authorities only that the API server's certificate is not signed by now.

        It is asked at most once for each that the process may still go by.
        """
        while self._former and self._former[0].until <= self._now():
            self._former.popleft()
        if pid is None or pid != self._pid:
            return False  # it reads the file when it starts
        return any([await _refused(config, former.authority) for former in tuple(self._former)])


async def _refused(config: ClusterConfig, authority: bytes | None) -> bool:
    """Whether the API server's certificate is refused by who goes by that authority. No credentials are shown."""
    anonymous = replace(
        config, ca_data=authority, token=None, client_certificate=None, client_key=None, impersonation=None
    )
    try:
        async with Client(
            anonymous, timeout_seconds=_TIMEOUT_SECONDS, connect_timeout_seconds=_TIMEOUT_SECONDS, limits=_LIMITS
        ) as client:
            await client.get(LEASES, "none", namespace="kube-system")
    except Unreachable as error:
        return error.reason == "CertificateInvalid"
    except ProviderError:
        return False
    return False
