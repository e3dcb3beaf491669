"""Client of a namespace that appears as a cluster."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from typing_extensions import override

from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.client.rest import FieldValidation
from kplane.provider.client.server_warnings import WarningHandler
from kplane.provider.client.transport import HttpRequest
from kplane.provider.client.written import Written
from kplane.provider.errors import NotFound
from kplane.provider.providers.namespace.view import DEFAULT, NamespaceView

__all__ = ["NamespaceClient"]

_NAMESPACED: Final = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([^/]+)(/.*)?")
_DISCOVERY: Final = re.compile(r"/(version|healthz|livez|readyz|openapi)(/.*)?|/api(/v1)?|/apis(/[^/]+){0,2}")
"""Paths about the cluster itself. All other paths outside of a namespace are cluster-scoped objects or lists."""


class NamespaceClient(Client):
    """Works on a namespace of the host's cluster, over the host's connections and with its credentials.

    A request for a cluster-scoped kind raises NotFound. A read in another namespace than `default` raises NotFound as
    well, and a write raises Invalid. `_adapted` translates the path, the body and the answer of each request.
    """

    def __init__(
        self,
        host: Client,
        *,
        view: NamespaceView,
        before_write: Callable[[], float | None] | None = None,
        field_manager: str | None = None,
        field_validation: FieldValidation = "Warn",
        on_warning: WarningHandler | None = None,
    ) -> None:
        """Create a client; `field_manager` is by default the field manager of the host's client."""
        super().__init__(
            host.config,
            transport=host.transport,
            timeout_seconds=host.timeout_seconds,
            limits=host.limits,
            field_manager=field_manager or host.field_manager,
            field_validation=field_validation,
            cluster=view.namespace,
            on_warning=on_warning,
            before_write=before_write,
        )
        self._host = host
        self._view = view

    @override
    def note_write(self, written: Written | None) -> None:
        """Notify the observers of this client and of the host's client, because the host's cache has all namespaces."""
        super().note_write(written)
        if written is not None:
            body = copy.deepcopy(written.object)
            if body is not None:
                body = self._view.outward(written.resource, body)
            self._host.note_write(replace(written, namespace=self._view.namespace, object=body))

    @override
    def __repr__(self) -> str:
        return f"NamespaceClient({self._view.namespace!r} of {self.config.server!r})"

    @override
    def _path(
        self,
        resource: Resource,
        name: str | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        write: bool = False,
    ) -> str:
        _ = (self._view.to_write if write else self._view.to_read)(resource, namespace)
        return super()._path(resource, name, namespace=DEFAULT, subresource=subresource)

    @override
    def _adapted(self, request: HttpRequest) -> HttpRequest:
        path, reads = request.path, request.method == "GET"
        match = _NAMESPACED.fullmatch(path) if _is_plain(path) else None
        if match is None:
            if reads and _is_plain(path) and _DISCOVERY.fullmatch(path):
                return request
            raise NotFound(404, "NotFound", f"{path} is not in a namespace, and there is nothing else here")
        prefix, namespace, plural, rest = match.groups()
        api_version = prefix.removeprefix("/apis/").removeprefix("/api/")
        resource = Resource(api_version, plural, plural, namespaced=True)
        target = (self._view.to_read if reads else self._view.to_write)(resource, namespace)
        return replace(
            request,
            path=f"{prefix}/namespaces/{target}/{plural}{rest or ''}",
            body=None if request.body is None else self._view.outward_bytes(resource, request.body),
            received=functools.partial(self._view.inward_bytes, resource),
        )


def _is_plain(path: str) -> bool:
    return not any(part in {"", ".", ".."} or "/" in part for part in map(unquote, path.split("/")[1:]))
