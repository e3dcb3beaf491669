"""Serves the webhooks of a manager's clusters."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from kplane.provider.client.kinds import KindName, parse_kind
from kplane.provider.client.resources import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from kplane.provider.client.typed import Kind, TypedKind, typed_of
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL
from kplane.provider.errors import ClusterNotFound, ClusterNotReady, DecodeFailed, ProviderError
from kplane.provider.logs import log_fields
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.listening import listening
from kplane.provider.webhooks.admission import Admission, Denied, Review, read_review
from kplane.provider.webhooks.ca_bundles import BundleTarget, Configure
from kplane.provider.webhooks.certificates import ServingCertificate
from kplane.provider.webhooks.configurations import (
    AdmissionRule,
    Entry,
    at_host,
    at_service,
    at_url,
    configure,
    host_and_port,
)
from kplane.provider.webhooks.conversion import Convert, convert_review
from kplane.provider.webhooks.reviews import Object
from kplane.provider.webhooks.self_signed import SelfSigned, SelfSignedCertificate

__all__ = ["Webhooks"]

log: Final = logging.getLogger(__name__)

Admit = Callable[[Admission[Any]], Awaitable[None]]
F = TypeVar("F", bound=Admit)
C = TypeVar("C", bound=Convert)

_ADMISSION_BYTES: Final = 7 << 20
"""Maximum size of an AdmissionReview, as in controller-runtime. An API server accepts objects of 3 MiB, and a review
has the object and the old object."""
_CONVERSION_BYTES: Final = 16 << 20
"""Maximum size of a ConversionReview: some objects. An API server converts objects from etcd one by one."""
_READ_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 10.0
_TIMEOUT: Final = re.compile(r"(\d{1,3})s")
_LONGEST_SECONDS: Final = 30.0
_FUNCTION_SHARE: Final = 0.9
"""Share of the API server's timeout for a function, so that the answer arrives in time."""


@dataclass(frozen=True, slots=True)
class _Webhook:
    entry: Entry
    typed: TypedKind[Any] | None
    function: Admit
    mutates: bool

    @property
    def kind(self) -> KindName:
        """Name of the kind."""
        return self.entry.name


class Webhooks:
    """Answers API servers for as long as the manager runs: `manager.add(Webhooks(manager, ...))`.

    Every replica serves, whichever replica works on a cluster. So the Service in front may choose any replica that is
    ready; the check `webhooks` fails until this process listens. controller-runtime has the same paths:
    `/validate-example-com-v1-widget`, `/mutate-example-com-v1-widget` (`/mutate--v1-pod` for the core group), and
    `/convert`. Webhooks of another cluster than the local cluster have `/clusters/<name>` in front. A name may have
    slashes.

    `certificate` and `key` are PEM files, which are read again when they change. API servers need their CA as
    `caBundle`. For development, `self_signed` makes both and writes the `caBundle`. `port=0` takes a free port.

    By default every client that reaches the port can ask, in the name of any cluster. So a webhook must have no effects
    but its answer. With `client_ca`, a PEM file, clients need a certificate of that CA. API servers show a certificate
    if their AdmissionConfiguration has it.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        self_signed: SelfSigned | None = None,
        client_ca: Path | None = None,
        host: str = "",
        port: int = 9443,
    ) -> None:
        """Raise ProviderError unless there is either a certificate with its key, or `self_signed`."""
        self._manager = manager
        self._certificate: ServingCertificate | SelfSignedCertificate
        if self_signed is not None and certificate is None and key is None:
            applied = partial(self._applied, self_signed)
            self._certificate = SelfSignedCertificate(
                self_signed, manager.local, configured=applied, client_ca=client_ca
            )
        elif self_signed is None and certificate is not None and key is not None:
            self._certificate = ServingCertificate(certificate, key, client_ca=client_ca)
        else:
            raise ProviderError("webhooks need a certificate: give certificate= and key=, or self_signed= alone")
        self._host = host
        self._port = port
        self._admits: dict[str, _Webhook] = {}
        self._converts: dict[str, Convert] = {}
        self._address: tuple[str, int] | None = None
        self.listening: Final = asyncio.Event()
        """Set while the process answers."""
        manager.add_ready_check("webhooks", self._require_listening)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which the process listens. Raises ProviderError if it does not listen."""
        if self._address is None:
            raise ProviderError("the webhooks are not served now")
        return self._address

    @property
    def paths(self) -> list[str]:
        """Paths of all webhooks of the local cluster, sorted."""
        return sorted([*self._admits, *(["/convert"] if self._converts else [])])

    def validate(self, kind: Kind[Any], rule: AdmissionRule | None = None) -> Callable[[F], F]:
        """Decorate a coroutine function that raises `Denied` for a request that must not be carried out.

        If `kind` is a class, the function gets instances, and objects that the class cannot decode are refused. `rule`
        selects requests, see `configurations`. Raises ProviderError if `kind` is no name of a kind, or has such a
        function already.
        """
        return partial(self._add, "validate", kind, rule or AdmissionRule())

    def mutate(self, kind: Kind[Any], rule: AdmissionRule | None = None) -> Callable[[F], F]:
        """Decorate a coroutine function that changes `admission.object` in place, or raises `Denied`.

        The API server may call the function several times for a request. So its changes must not depend on the number
        of calls. Raises as `validate`.
        """
        return partial(self._add, "mutate", kind, rule or AdmissionRule())

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

    async def configurations(self, name: str, *, service: str | None = None, url: str | None = None) -> list[Object]:
        """Return the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration for these functions.

        The result has only configurations with webhooks, each for the requests that its `rule` selects. They have no
        `caBundle`. The API server reaches the process through port 443 of a `service`, given as `namespace/name`, or by
        a `url`. Append `/clusters/<name>` to the URL for another cluster than the local cluster.

        The local cluster is asked for the plural of custom kinds that no class with a plural stands for. Raises
        ProviderError unless either is given, and NotServed for a kind that the cluster does not serve.
        """
        if service is not None and url is None:
            reached = at_service(service)
        elif url is not None and service is None:
            reached = at_url(url)
        else:
            raise ProviderError("an API server needs one way to reach the webhooks: give service= or url=")
        client = self._manager.local.client
        return [await configure(client, resource, name, entries, reached) for resource, entries in self._entries()]

    async def run(self) -> None:
        """Serve until cancelled. Raises ListenFailed if the port is taken, and ProviderError without a certificate."""
        context = await self._certificate.load()
        app = web.Application(client_max_size=_CONVERSION_BYTES, middlewares=[self._close_when_stopping])
        # API servers decode the escapes of a path before they send it, so a cluster's name may have slashes.
        for prefix in ("", "/clusters/{cluster:.+}"):
            app.router.add_post(f"{prefix}/convert", self._answer_conversion)
            app.router.add_post(f"{prefix}/{{webhook:[^/]+}}", self._answer_admission)
        async with listening(
            app, host=self._host, port=self._port, tls=context, close_seconds=_CLOSE_SECONDS
        ) as address:
            self._address = address
            self.listening.set()
            log.info("serving webhooks on %s: %s", host_and_port(*address), ", ".join(self.paths))
            try:
                await self._certificate.follow()
            finally:
                self.listening.clear()
                self._address = None

    async def _require_listening(self) -> None:
        if not self.listening.is_set():
            raise ProviderError("the webhooks are not served yet; see the log")

    def _add(self, verb: str, kind: Kind[Any], rule: AdmissionRule, function: F) -> F:
        name = parse_kind(kind)
        group, _, version = name.api_version.rpartition("/")
        path = f"/{verb}-{group.replace('.', '-')}-{version}-{name.kind.lower()}"
        if path in self._admits:
            raise ProviderError(f"there is a function already for {path}")
        entry = Entry(path, name, kind, rule)
        self._admits[path] = _Webhook(entry, typed_of(kind), function, mutates=verb == "mutate")
        return function

    def _entries(self) -> Iterator[tuple[Resource, list[Entry]]]:
        """Yield the kind of each configuration that has webhooks, and the webhooks sorted by path."""
        webhooks = [webhook for _, webhook in sorted(self._admits.items())]
        for resource, mutates in (
            (MUTATING_WEBHOOK_CONFIGURATIONS, True),
            (VALIDATING_WEBHOOK_CONFIGURATIONS, False),
        ):
            if entries := [webhook.entry for webhook in webhooks if webhook.mutates is mutates]:
                yield resource, entries

    def _applied(self, options: SelfSigned) -> Mapping[BundleTarget, Configure]:
        """Return the configurations that the process applies while it listens."""
        name = options.configuration
        if name is None:
            return {}
        client, reached = self._manager.local.client, at_host(options.hosts[0], self.address[1])
        return {
            BundleTarget(resource, name): partial(configure, client, resource, name, entries, reached)
            for resource, entries in self._entries()
        }

    @web.middleware
    async def _close_when_stopping(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if self._manager.stopping:
            # API servers keep connections, and would send the next request to a process that is about to end.
            response.force_close()
        return response

    async def _answer_conversion(self, request: web.Request) -> web.Response:
        if not self._converts:
            return web.Response(status=404, text="no kinds are converted here")
        try:
            body = await _read(request, at_most=_CONVERSION_BYTES)
            return _json(await convert_review(body, by_kind=self._converts))
        except ProviderError as error:
            return web.Response(status=400, text=str(error))

    async def _answer_admission(self, request: web.Request) -> web.Response:
        webhook = self._admits.get(f"/{request.match_info['webhook']}")
        if webhook is None:
            return web.Response(status=404, text=f"there is no such webhook; there are {', '.join(self.paths)}")
        name = request.match_info.get("cluster", LOCAL)
        try:
            body = await _read(request, at_most=_ADMISSION_BYTES)
            review = read_review(body, kind=webhook.kind, cluster=self._cluster(name), typed=webhook.typed)
        except ClusterNotFound as error:
            return web.Response(status=404, text=str(error))
        except ClusterNotReady as error:
            return web.Response(status=503, text=str(error))
        except ProviderError as error:
            return web.Response(status=400, text=str(error))
        with log_fields(webhook=request.path, cluster=name, object=f"{webhook.kind} {_object_name(review.admission)}"):
            return await _admit(review, webhook, seconds=_seconds(request.query.get("timeout", "")))

    def _cluster(self, name: str) -> Cluster:
        # `get_cluster` refuses clusters on which another replica works, and clusters whose engagement ends.
        return self._manager.local if name == LOCAL else self._manager.clusters.present(name)


async def _read(request: web.Request, *, at_most: int) -> bytes:
    """Return the body. Raises an HTTP error for a body that is compressed, too large or too slow."""
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="a review is not compressed")
    if request.content_length is None or request.content_length > at_most:
        raise web.HTTPRequestEntityTooLarge(
            at_most, request.content_length or 0, text=f"a review has a length, of at most {at_most} bytes"
        )
    try:
        async with asyncio.timeout(_READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"no whole review came within {_READ_SECONDS:g} s") from None


async def _admit(review: Review, webhook: _Webhook, *, seconds: float) -> web.Response:
    """Call the function. A failure gets an HTTP error, so that the `failurePolicy` of the webhook decides."""
    limit = asyncio.timeout(seconds)
    try:
        review.decode()
        before = review.snapshot()
        async with limit:
            await webhook.function(review.admission)
        answer = review.change(since=before) if webhook.mutates else review.allow()
    except Denied as denied:
        answer = review.deny(denied)
    except DecodeFailed as error:
        answer = review.deny(Denied(str(error), code=422))
    except Exception:
        if limit.expired():
            log.warning("failed to admit: it took longer than the %g s that the API server waits", seconds)
            return web.Response(status=504, text=f"the webhook had no answer within {seconds:g} s")
        log.exception("failed to admit")
        return web.Response(status=500, text="the webhook failed; its log says why")
    return _json(answer)


def _json(answer: object) -> web.Response:
    return web.Response(body=orjson.dumps(answer), content_type="application/json")


def _object_name(admission: Admission) -> str:
    return "/".join(filter(None, (admission.namespace, admission.name)))


def _seconds(timeout: str) -> float:
    """Return the timeout of a function, from the timeout of the API server."""
    match = _TIMEOUT.fullmatch(timeout)
    return _FUNCTION_SHARE * (min(float(match[1]), _LONGEST_SECONDS) if match and int(match[1]) else _LONGEST_SECONDS)
