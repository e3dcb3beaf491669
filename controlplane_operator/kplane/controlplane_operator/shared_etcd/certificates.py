"""Certificates of the shared etcd in Secrets, as entries `<name>.crt` and `<name>.key`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

from kplane.pki.entries import entries, kept, read_pair
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving

__all__ = ["authority_of", "create_credentials", "renew_credentials", "renew_server", "server_hosts"]

_ROOT: Final = "root"
"""Administrator of etcd. Clients and members are identified by the CN of their certificates."""

_MEMBERS: Final = 3
"""Maximum number of members in the chart. A certificate may name members that do not exist."""


def server_hosts(service: str, *, namespace: str) -> tuple[str, ...]:
    """Return the host names of the members: local ones, that of the Service, and those for their peers."""
    members = (f"{service}-{number}.{service}-peers.{namespace}.svc" for number in range(_MEMBERS))
    return ("localhost", "127.0.0.1", f"{service}.{namespace}.svc", *members)


def create_credentials(name: str) -> dict[str, bytes]:
    """Create a CA with this name, and the client certificate of etcd's administrator."""
    authority = create_authority(name[:64])  # RFC 5280, appendix A: a common name has 64 characters at most
    return entries("ca", authority) | entries("client", issue_client(authority, user=_ROOT))


def renew_credentials(known: Mapping[str, bytes], *, now: dt.datetime) -> dict[str, bytes]:
    """Return the same CA with its client certificate, which is renewed if it is due or unusable.

    Raises CredentialsInvalid if the CA is damaged, because all members and clients depend on it.
    """
    authority = authority_of(known)
    client = _kept(known, "client", authority=authority, hosts=(), now=now) or issue_client(authority, user=_ROOT)
    return entries("ca", authority) | entries("client", client)


def renew_server(
    known: Mapping[str, bytes], *, authority: KeyPair, hosts: tuple[str, ...], now: dt.datetime
) -> dict[str, bytes]:
    """Return the CA certificate, and the certificate of the members, which is renewed if it is due or unusable.

    Members also use it as their client certificate for each other.
    """
    server = _kept(known, "server", authority=authority, hosts=hosts, now=now) or issue_serving(
        authority, common_name=_ROOT, hosts=hosts, client=True
    )
    return {"ca.crt": authority.certificate, **entries("server", server)}


def authority_of(credentials: Mapping[str, bytes]) -> KeyPair:
    """Return the CA. Raises CredentialsInvalid if it is missing or damaged."""
    return read_pair(credentials, "ca")


def _kept(
    known: Mapping[str, bytes], name: str, *, authority: KeyPair, hosts: tuple[str, ...], now: dt.datetime
) -> KeyPair | None:
    try:
        return kept(read_pair(known, name), authority, now=now, hosts=hosts, user=_ROOT)
    except CredentialsInvalid:
        return None
