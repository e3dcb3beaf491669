"""The certificates of the shared etcd, as the Secrets carry them: entries `<name>.crt` and `<name>.key`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

from controlplane_operator.credentials.pki import (
    KeyPair,
    check_pair,
    create_authority,
    hosts_of,
    issue_client,
    issue_serving,
    issued_by,
    renewal_due,
    user_of,
)
from controlplane_operator.errors import CredentialsInvalid

__all__ = ["authority_of", "create_credentials", "renew_credentials", "renew_server", "server_hosts"]

_ROOT: Final = "root"
"""etcd's administrator: clients and members of etcd are known by the CN of their certificate."""

_MEMBERS: Final = 3
"""As many as the chart runs at most; a certificate may name members that do not exist."""


def server_hosts(service: str, *, namespace: str) -> tuple[str, ...]:
    """Return the names that members are reached under: through the Service, by each other, and from within."""
    members = (f"{service}-{number}.{service}-peers.{namespace}.svc" for number in range(_MEMBERS))
    return ("localhost", "127.0.0.1", f"{service}.{namespace}.svc", *members)


def create_credentials(name: str) -> dict[str, bytes]:
    """Create an authority of that name, and the client certificate of etcd's administrator."""
    authority = create_authority(name[:64])  # RFC 5280, appendix A: a common name has 64 characters at most
    return _entries("ca", authority) | _entries("client", issue_client(authority, user=_ROOT))


def renew_credentials(known: Mapping[str, bytes], *, now: dt.datetime) -> dict[str, bytes]:
    """Return the same authority, and the same client certificate unless it is due or worth nothing.

    Raises CredentialsInvalid where the authority is damaged, since everything hangs on it.
    """
    authority = authority_of(known)
    client = _kept(known, "client", authority=authority, hosts=(), now=now) or issue_client(authority, user=_ROOT)
    return _entries("ca", authority) | _entries("client", client)


def renew_server(
    known: Mapping[str, bytes], *, authority: KeyPair, hosts: tuple[str, ...], now: dt.datetime
) -> dict[str, bytes]:
    """Return the authority's certificate, and the same certificate of the members unless it is due or worth nothing.

    Members show it to each other as clients too.
    """
    server = _kept(known, "server", authority=authority, hosts=hosts, now=now) or issue_serving(
        authority, common_name=_ROOT, hosts=hosts, client=True
    )
    return {"ca.crt": authority.certificate, **_entries("server", server)}


def authority_of(credentials: Mapping[str, bytes]) -> KeyPair:
    """Return the authority. Raises CredentialsInvalid where it is missing or damaged."""
    return _read(credentials, "ca")


def _kept(
    known: Mapping[str, bytes], name: str, *, authority: KeyPair, hosts: tuple[str, ...], now: dt.datetime
) -> KeyPair | None:
    try:
        pair = _read(known, name)
    except CredentialsInvalid:
        return None
    good = (
        issued_by(pair.certificate, authority=authority)
        and user_of(pair.certificate) == _ROOT
        and hosts_of(pair.certificate).issuperset(hosts)
        and not renewal_due(pair.certificate, now=now)
    )
    return pair if good else None


def _entries(name: str, pair: KeyPair) -> dict[str, bytes]:
    return {f"{name}.crt": pair.certificate, f"{name}.key": pair.key}


def _read(data: Mapping[str, bytes], name: str) -> KeyPair:
    try:
        pair = KeyPair(data[f"{name}.crt"], data[f"{name}.key"])
        check_pair(pair)
    except KeyError as error:
        raise CredentialsInvalid(f"it has no entry {error.args[0]}") from None
    except CredentialsInvalid as error:
        raise CredentialsInvalid(f"entries {name}.crt and {name}.key: {error}") from None
    return pair
