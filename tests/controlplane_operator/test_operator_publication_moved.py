"""Credentials are sent only to the API server that issued them, by comparison of published and current endpoint."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes
from kplane.controlplane_operator.controlplanes.credentials import CredentialIssuer
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.watch.stores import Stores
from kplane.pki.primitives import create_authority
from kplane.provider import ClusterConfig

_OLD, _NEW = "https://old.example", "https://new.example"
_CA, _OTHER_CA = (create_authority(name).certificate for name in ("one", "other"))


def told(*, published: bytes, at: str, ca: bytes, named: str | None = _OLD) -> bool:
    stores = Stores()
    metadata = {"name": "controlplane-acme-kubeconfig", "namespace": "kplane-cp-acme", "resourceVersion": "1"}
    stores.secrets.apply({"metadata": metadata, "data": {"kubeconfig": base64.b64encode(published).decode()}})
    context = cast("OperatorContext", SimpleNamespace(stores=stores))
    issuer = CredentialIssuer(context, probes=CredentialProbes(context, use=HostNameUse(context)))
    status = {"endpoint": named} if named is not None else {}
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}, "status": status})
    administrator = ClusterConfig(server=at, ca_data=ca, token="administrator")
    provision = Provision(Addresses(at, at, at), administrator=administrator, authorities=None)
    return issuer._is_another_server(control_plane, provision)


def kubeconfig(server: str = _OLD, ca: bytes = _CA) -> bytes:
    return json.dumps(ClusterConfig(server=server, ca_data=ca, token="issued").to_kubeconfig()).encode()


@pytest.mark.parametrize(
    ("case", "another"),
    [
        ({"at": _NEW, "ca": _OTHER_CA}, True),
        ({"at": _NEW, "ca": _CA}, False),  # only the address changed
        ({"at": _OLD, "ca": _OTHER_CA}, False),  # only the CA changed
        ({"at": _OLD, "ca": _CA}, False),
        ({"at": _NEW, "ca": _OTHER_CA, "named": None}, False),  # no endpoint was published yet
    ],
)
def test_another_address_with_another_ca_is_another_server(case: dict[str, Any], another: bool) -> None:
    assert told(published=kubeconfig(), **case) is another


def test_credentials_of_new_server_are_used_after_crash_in_move() -> None:
    assert not told(published=kubeconfig(_NEW, _OTHER_CA), at=_NEW, ca=_OTHER_CA)


def test_unreadable_kubeconfig_counts_as_another_server() -> None:
    assert told(published=b"garbage", at=_NEW, ca=_OTHER_CA)
