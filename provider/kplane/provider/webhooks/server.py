"""Serves the webhooks of a manager's clusters."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import orjson
from aiohttp import web

from kplane.provider.client.kinds import KindName, parse_kind
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL
from kplane.provider.errors import ClusterNotFound, ClusterNotReady, ProviderError
from kplane.provider.logs import log_fields
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.listening import listening
from kplane.provider.webhooks.admission import Admission, Denied, Review, read_review
from kplane.provider.webhooks.certificates import ServingCertificate
from kplane.provider.webhooks.conversion import Convert, converted

__all__ = ["Webhooks"]

log: Final = logging.getLogger(__name__)

Admit = Callable[[Admission], Awaitable[None]]
F = TypeVar("F", bound=Admit)
C = TypeVar("C", bound=Convert)

_ADMISSION_BYTES: Final = 7 << 20
"""Object and old object of 3 MiB each, which is what an API server takes, and the rest; as in controller-runtime."""
_CONVERSION_BYTES: Final = 512 << 20
"""A review has all objects of a list."""
_CLOSE_SECONDS: Final = 10.0
_SECONDS: Final = re.compile(r"(\d{1,3})s")
_LONGEST_SECONDS: Final = 30.0


class Webhooks:
    """Answers API servers for as long as the manager runs: `manager.add(Webhooks(manager, ...))`.

    Every replica serves, whichever works on a cluster. So the Service in front may choose any that is ready; the check
    `webhooks` fails until this one listens. The paths are those of controller-runtime:
    `/validate-example-com-v1-widget`, `/mutate-example-com-v1-widget` (`/mutate--v1-pod` for the core group), and
    `/convert`. Webhooks of another cluster than the local one have `/clusters/<name>` in front, with the name escaped
    as in URLs.

    `certificate` and `key` are PEM files, which are read again when they change. API servers must be given their CA as
    `caBundle`. `port=0` takes a free port.

    An API server does not say who it is, unless its configuration has a client certificate for webhooks. So anyone who
    reaches the port can ask: webhooks must answer, and do nothing else.
    """

    def __init__(self, manager: Manager, *, certificate: Path, key: Path, host: str = "", port: int = 9443) -> None:
        self._manager = manager
        self._certificate = ServingCertificate(certificate, key)
        self._host = host
        self._port = port
        self._admits: dict[str, tuple[KindName, Admit]] = {}
        self._converts: dict[str, Convert] = {}
        self._address: tuple[str, int] | None = None
        self.listening: Final = asyncio.Event()
        """Set while it answers."""
        manager.add_ready_check("webhooks", self._require_listening)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on. Raises ProviderError if it does not listen."""
        if self._address is None:
            raise ProviderError("the webhooks are not served now")
        return self._address

    @property
    def paths(self) -> list[str]:
        """Where it answers for the local cluster, sorted."""
        return sorted([*self._admits, *(["/convert"] if self._converts else [])])

    def validate(self, kind: Resource | str) -> Callable[[F], F]:
        """Decorate a coroutine function that raises `Denied` for a request that must not be carried out.

        Raises ProviderError if `kind` is no name of a kind, or has such a function already.
        """
        return partial(self._add, "validate", parse_kind(kind))

    def mutate(self, kind: Resource | str) -> Callable[[F], F]:
        """Decorate a coroutine function that changes `admission.object` in place, or raises `Denied`.

        It may be called several times for one request, and must not change what it has changed before. Raises as
        `validate`.
        """
        return partial(self._add, "mutate", parse_kind(kind))

    def convert(self, group_kind: str) -> Callable[[C], C]:
        """Decorate a function that converts objects of a kind, such as `example.com/Widget`, to a given apiVersion.

        Raises ProviderError if that is no kind of a group, or has such a function already.
        """
        if group_kind.count("/") != 1:
            raise ProviderError(f"{group_kind!r} is no kind of a group: it is written as 'example.com/Widget'")

        def add(function: C) -> C:
            if group_kind in self._converts:
                raise ProviderError(f"there is a function already that converts {group_kind}")
            self._converts[group_kind] = function
            return function

        return add

    async def run(self) -> None:
        """Serve until cancelled. Raises ListenFailed if the port is taken, and ProviderError without a certificate."""
        context = await self._certificate.load()
        app = web.Application(client_max_size=_CONVERSION_BYTES)
        app.router.add_post("/convert", self._answer_conversion)
        app.router.add_post("/{webhook}", self._answer_admission)
        app.router.add_post("/clusters/{cluster}/convert", self._answer_conversion)
        app.router.add_post("/clusters/{cluster}/{webhook}", self._answer_admission)
        async with listening(
            app, host=self._host, port=self._port, tls=context, close_seconds=_CLOSE_SECONDS
        ) as address:
            self._address = address
            self.listening.set()
            log.info("serving webhooks: %s", ", ".join(self.paths))
            try:
                await self._certificate.follow()
            finally:
                self.listening.clear()
                self._address = None

    async def _require_listening(self) -> None:
        if not self.listening.is_set():
            raise ProviderError("the webhooks are not served yet; see the log")

    def _add(self, verb: str, kind: KindName, function: F) -> F:
        group, _, version = kind.api_version.rpartition("/")
        path = f"/{verb}-{group.replace('.', '-')}-{version}-{kind.kind.lower()}"
        if path in self._admits:
            raise ProviderError(f"there is a function already for {path}")
        self._admits[path] = kind, function
        return function

    async def _answer_conversion(self, request: web.Request) -> web.Response:
        if not self._converts:
            return web.Response(status=404, text="no kinds are converted here")
        try:
            return _json(await converted(await request.read(), by_kind=self._converts))
        except ProviderError as error:
            return web.Response(status=400, text=str(error))

    async def _answer_admission(self, request: web.Request) -> web.Response:
        found = self._admits.get(f"/{request.match_info['webhook']}")
        if found is None:
            return web.Response(status=404, text=f"there is no such webhook; there are {', '.join(self.paths)}")
        if request.content_length is None or request.content_length > _ADMISSION_BYTES:
            return web.Response(status=413, text=f"a review has a length, of at most {_ADMISSION_BYTES} bytes")
        kind, function = found
        name = request.match_info.get("cluster", LOCAL)
        try:
            review = read_review(await request.read(), kind=kind, cluster=self._cluster(name))
        except ClusterNotFound as error:
            return web.Response(status=404, text=str(error))
        except ClusterNotReady as error:
            return web.Response(status=503, text=str(error))
        except ProviderError as error:
            return web.Response(status=400, text=str(error))
        with log_fields(webhook=request.path, cluster=name, object=f"{kind} {_where(review.admission)}"):
            return await _admit(review, function, seconds=_seconds(request.query.get("timeout", "")))

    def _cluster(self, name: str) -> Cluster:
        # Not `get_cluster`, which refuses the clusters that another replica works on.
        return self._manager.local if name == LOCAL else self._manager.clusters.get(name)


async def _admit(review: Review, function: Admit, *, seconds: float) -> web.Response:
    """Call the function. A failure is no answer, so that the `failurePolicy` of the webhook decides."""
    try:
        async with asyncio.timeout(seconds):
            await function(review.admission)
        answer = review.allow()
    except Denied as denied:
        answer = review.deny(denied)
    except TimeoutError:
        log.warning("failed to admit: it took longer than the %g s that the API server waits", seconds)
        return web.Response(status=504, text=f"the webhook had no answer within {seconds:g} s")
    except Exception:
        log.exception("failed to admit")
        return web.Response(status=500, text="the webhook failed; its log says why")
    return _json(answer)


def _json(answer: object) -> web.Response:
    return web.Response(body=orjson.dumps(answer), content_type="application/json")


def _where(admission: Admission) -> str:
    return "/".join(filter(None, (admission.namespace, admission.name)))


def _seconds(timeout: str) -> float:
    match = _SECONDS.fullmatch(timeout)
    return min(float(match[1]), _LONGEST_SECONDS) if match and int(match[1]) else _LONGEST_SECONDS
