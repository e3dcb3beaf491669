"""What virtual and dedicated control planes have in common: a kube-apiserver that kplane runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kplane.api import KubernetesVersion
from kplane.controlplane_operator.backends.apiserver import external_url, server_url
from kplane.controlplane_operator.backends.base import Provision, VersionLag
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason
from kplane.provider import ClusterConfig
from kplane.workloads import Address, ComponentState, Phase, Runtime, WorkloadsError

__all__ = ["check_ready", "provision_at", "runtime_errors"]

_PATIENCE_SECONDS: Final = 3.0


async def check_ready(runtime: Runtime, component: str, *, what: str, published: bool) -> ComponentState:
    """Return the state of a component that is ready; `what` names it for people.

    Raises ConditionError (Provisioning, or APIServerNotReady once published) while it is not ready, and (Failed) if it
    never was and there is no program to run.

    Once published, wait a little for a start: after a restart of the operator it probes every component anew, and that
    must not make the control planes seem to be down.
    """
    if published:
        await _settle(runtime, component)
    state = runtime.state(component)
    if state.phase is not Phase.READY:
        told = f": {state.message}" if state.message else ""
        if state.unobtainable and not published:
            raise ConditionError(Reason.FAILED, f"{what} cannot be started{told}")
        reason = Reason.API_SERVER_NOT_READY if published else Reason.PROVISIONING
        raise ConditionError(reason, f"waiting for {what}, which is {state.phase}{told}")
    return state


async def _settle(runtime: Runtime, component: str) -> None:
    changed = asyncio.Event()
    unsubscribe = runtime.subscribe(lambda name: changed.set() if name == component else None)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while runtime.state(component).phase is Phase.STARTING:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return
    finally:
        unsubscribe()


def provision_at(
    address: Address,
    *,
    authorities: TenantAuthorities,
    certificates: TenantCertificates,
    settled: bool,
    asked: KubernetesVersion | None,
    lag: VersionLag | None,
) -> Provision:
    """Describe how to get in at the address of a kube-apiserver that kplane runs; the rest is that of Provision."""
    url, external = server_url(address), external_url(address)
    administrator = authorities.issue_administrator()
    return Provision(
        addresses=Addresses(internal=url, external=external, join=external),
        administrator=ClusterConfig(
            server=url,
            ca_data=authorities.serving_trust,
            client_certificate=administrator.certificate,
            client_key=administrator.key,
        ),
        authorities=authorities,
        controllers=certificates.controllers,
        settled=settled,
        asked=asked,
        lag=lag,
    )


@contextmanager
def runtime_errors(reason: Reason) -> Iterator[None]:
    """Turn failures of the runtime and of the shared etcd into ConditionError with this reason."""
    try:
        yield
    except (WorkloadsError, KeyspaceError) as error:
        raise ConditionError(reason, str(error)) from error
