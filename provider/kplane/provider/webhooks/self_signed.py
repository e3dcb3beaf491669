"""Certificates that a process makes for its own webhooks, for development."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kplane.provider.client.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kplane.provider.client.tls import as_file
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.errors import ProviderError
from kplane.provider.webhooks.ca_bundles import BundleTarget, Configure, keep_bundle
from kplane.provider.webhooks.certificates import ContextChooser, server_context

if TYPE_CHECKING:
    from kplane.provider.webhooks.authority import Authority

__all__ = ["SelfSigned", "SelfSignedCertificate"]

log: Final = logging.getLogger(__name__)

_RENEW_SECONDS: Final = 24 * 3600.0


class SelfSigned:
    """Has `Webhooks` make a CA and a serving certificate, for development: `Webhooks(manager, self_signed=...)`.

    `hosts` are the names and addresses by which API servers reach the process: the host of the `url`, or
    `NAME.NAMESPACE.svc` for a Service. The CA is written as `caBundle` to the objects of the local cluster that are
    named: `validating` and `mutating` webhook configurations, and CustomResourceDefinitions for `conversion`.

    With `configuration`, the process applies the webhook configurations itself, under this name, as
    `Webhooks.configurations` returns them for the first host. They stay when the process ends.

    The identity needs the rights to list, watch and patch these objects, and to create those that it applies. Keys stay
    in memory, and each process has its own CA. Use cert-manager in production, where the process should not have these
    rights.

    Raises ProviderError without hosts, and for a text in place of a tuple.
    """

    def __init__(
        self,
        *hosts: str,
        configuration: str | None = None,
        validating: tuple[str, ...] = (),
        mutating: tuple[str, ...] = (),
        conversion: tuple[str, ...] = (),
    ) -> None:
        if not hosts:
            raise ProviderError("a certificate needs a host by which API servers reach it, such as 'localhost'")
        if str in map(type, (validating, mutating, conversion)):
            raise ProviderError("the names of objects are a text: write a tuple, such as validating=('my-controller',)")
        self.hosts: Final = hosts
        self.configuration: Final = configuration
        """Name of the webhook configurations to apply."""
        self.targets: Final = (
            *(BundleTarget(VALIDATING_WEBHOOK_CONFIGURATIONS, name) for name in validating),
            *(BundleTarget(MUTATING_WEBHOOK_CONFIGURATIONS, name) for name in mutating),
            *(BundleTarget(CUSTOM_RESOURCE_DEFINITIONS, name) for name in conversion),
        )
        """The objects whose `caBundle` is written."""


class SelfSignedCertificate:
    """The certificate of a server as `SelfSigned` describes it. It is renewed every day, and valid for 30 days."""

    def __init__(
        self,
        options: SelfSigned,
        cluster: Cluster,
        *,
        configured: Callable[[], Mapping[BundleTarget, Configure]] = dict,
        client_ca: Path | None = None,
    ) -> None:
        """With `client_ca`, a PEM file that is read once, clients need a certificate of that CA.

        `configured` is called by `follow`, and returns the webhook configurations to apply.
        """
        self._options = options
        self._cluster = cluster
        self._configured = configured
        self._client_ca = client_ca
        self._authority: Authority | None = None
        self._chooser = ContextChooser()

    async def load(self) -> ssl.SSLContext:
        """Make the certificates, and return a context that shows the newest one."""
        await asyncio.to_thread(self._issue)
        return await asyncio.to_thread(self._chooser.context, self._client_ca)

    async def follow(self) -> NoReturn:
        """Renew the certificate, apply configurations and write caBundles until cancelled.

        A target that fails holds up no other target.
        """
        configured = self._configured()
        async with asyncio.TaskGroup() as tasks:
            for target in dict.fromkeys((*self._options.targets, *configured)):
                work: Coroutine[Any, Any, NoReturn] = keep_bundle(
                    self._cluster, target, self._bundle, configure=configured.get(target)
                )
                _ = tasks.create_task(work, name=f"write the caBundle of {target}")
            while True:
                await asyncio.sleep(_RENEW_SECONDS)
                await asyncio.to_thread(self._issue)
                log.info("serving with a renewed self-signed certificate")

    def _issue(self) -> None:
        # Loaded on first use.
        from kplane.provider.webhooks.authority import Authority

        if self._authority is None:
            self._authority = Authority()
        issued = self._authority.issue(self._options.hosts)
        context = server_context(self._client_ca)
        with as_file(issued.certificate + issued.key) as path:
            context.load_cert_chain(path)
        self._chooser.current = context

    def _bundle(self, former: bytes) -> bytes:
        from kplane.provider.webhooks.authority import bundle_with

        assert self._authority is not None  # noqa: S101 - `load` comes first
        return bundle_with(self._authority.certificate, former)
