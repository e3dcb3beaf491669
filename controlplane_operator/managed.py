"""What virtual and dedicated control planes have in common: a kube-apiserver that kplane runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane_operator.addresses import Addresses
from controlplane_operator.credentials import TenantAuthorities, TenantCertificates
from controlplane_operator.errors import KeyspaceError
from controlplane_operator.provision import Provision
from controlplane_operator.provisioning import server_url
from controlplane_operator.trouble import Trouble
from provider import ClusterConfig
from workloads import Address, Phase, Runtime, WorkloadsError

__all__ = ["check_ready", "provision_at", "troubles"]


def check_ready(runtime: Runtime, component: str, *, what: str) -> None:
    """Raise Trouble (Provisioning) unless the component is ready; `what` names it for people."""
    state = runtime.state(component)
    if state.phase is not Phase.READY:
        told = f": {state.message}" if state.message else ""
        raise Trouble("Provisioning", f"waiting for {what}, which is {state.phase}{told}")


def provision_at(address: Address, *, authorities: TenantAuthorities, certificates: TenantCertificates) -> Provision:
    """Describe how to get in at the address of a kube-apiserver that kplane runs."""
    url = server_url(address)
    administrator = authorities.issue_administrator()
    return Provision(
        addresses=Addresses(internal=url, external=url, join=url),
        administrator=ClusterConfig(
            server=url,
            ca_data=authorities.serving.certificate,
            client_certificate=administrator.certificate,
            client_key=administrator.key,
        ),
        authorities=authorities,
        controllers=certificates.controllers,
    )


@contextmanager
def troubles(reason: str) -> Iterator[None]:
    """Turn failures of the runtime and of the shared etcd into Trouble with this reason."""
    try:
        yield
    except (WorkloadsError, KeyspaceError) as error:
        raise Trouble(reason, str(error)) from error
