"""Types of values of the flags of `controlplane-operator`, with their validation."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ValidationError

from kplane.api import ResourceAmounts
from kplane.api.configuration import Directory
from kplane.controlplane_operator.grants import Account

__all__ = [
    "AccountName",
    "Amounts",
    "Domain",
    "EtcdCredentials",
    "Host",
    "HttpsUrl",
    "Interval",
    "LabelPair",
    "McmArgument",
    "NamedUrl",
    "Peers",
    "Program",
    "Size",
    "etcd_credentials",
    "storage_bytes",
]

_QUANTITY: Final = re.compile(r"([1-9][0-9]*)(Mi|Gi|Ti|M|G|T)")
_UNITS: Final = {"Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "M": 10**6, "G": 10**9, "T": 10**12}
_INTERVAL: Final = re.compile(r"([0-9]+(ms|s|m|h))+")
_HOST: Final = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST_DOMAIN: Final = 189
"""Maximum length of a domain: a host name has up to 253 characters, and a clusterPath with its dot takes up to 64."""
_SET_BY_OPERATOR: Final = re.compile(
    r"-h|--|--(help|kubeconfig|state-dir|listen|(no-)?report-status|registration(-.*)?"
    r"|cluster-(source|kubeconfig-secret-template|namespace-scope|selector|sharding|shard-.*|lease-.*))"
)
"""Flags of mcm that users cannot set: those of the operator, and those of a shared mcm.

With a flag of a shared mcm, the mcm of a single registration does not start.
"""


def _account(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    namespace, separator, name = value.partition("/")
    if not separator or not namespace or not name or "/" in name:
        raise ValueError("this is not NAMESPACE/NAME, such as kplane-system/mcm")
    return Account(namespace, name)


def _https(url: str) -> str:
    parts = urlsplit(url)
    # Reading the port raises ValueError if it is not a number.
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.port == 0:
        raise ValueError("an https URL is needed, such as https://10.0.0.5:2379")
    return url


class _NamedUrl(NamedTuple):
    name: str
    url: str


def _named_url(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name, separator, url = value.partition("=")
    if not separator or not _LABEL.fullmatch(name):
        raise ValueError("this is not NAME=URL, such as pool-b=https://10.0.0.6:2379")
    return _NamedUrl(name, _https(url))


def _domain(name: str) -> str:
    if len(name) > _LONGEST_DOMAIN or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(
            f"a domain of at most {_LONGEST_DOMAIN} lower-case letters, digits, '-' and '.' is needed, such as"
            " cp.example.org"
        )
    return name


def etcd_credentials(directory: Path) -> Path:
    """Return the directory, if it has all credentials of a shared etcd. Raises ValueError."""
    for name in ("ca.crt", "ca.key", "client.crt", "client.key"):
        if not (directory / name).is_file():
            raise ValueError(f"{name} is missing there")
    return directory


def _program(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError("there is no such program")
    return path.absolute()


def _host(value: str) -> str:
    try:
        # Normalize the address, because certificates contain this form only.
        return str(ipaddress.ip_address(value))
    except ValueError:
        if not _HOST.fullmatch(value):
            raise ValueError("this is no host name and no address") from None
    return value.lower()


def storage_bytes(size: str) -> int:
    """Return the number of bytes of a size such as 10Gi. Raises ValueError for invalid text."""
    parts = _QUANTITY.fullmatch(size)
    if parts is None:
        raise ValueError("this is no size, such as 10Gi")
    return int(parts[1]) * _UNITS[parts[2]]


def _size(value: str) -> str:
    storage_bytes(value)
    return value


def _interval(value: str) -> str:
    if not _INTERVAL.fullmatch(value):
        raise ValueError("this is no duration, such as 30s")
    return value


def _label(value: str) -> str:
    name, separator, _ = value.partition("=")
    if not separator or not name:
        raise ValueError("this is not NAME=VALUE, such as release=prometheus")
    return value


def _peers(value: Any) -> Any:
    try:
        peers = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from None
    if isinstance(peers, list):
        peers = [{k: v for k, v in peer.items() if v is not None} if isinstance(peer, dict) else peer for peer in peers]
    if isinstance(value, str) and (not isinstance(peers, list) or not all(_is_peer(peer) for peer in peers)):
        raise ValueError(
            "this is no list of peers as in a NetworkPolicy, such as"
            ' [{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]'
        )
    return tuple(peers)


def _is_peer(peer: Any) -> bool:
    return (
        isinstance(peer, dict)
        and (peer.keys() == {"ipBlock"} or (bool(peer) and peer.keys() <= {"namespaceSelector", "podSelector"}))
        and all(isinstance(part, dict) for part in peer.values())
    )


def _amounts(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    amounts: dict[str, str] = {}
    for part in value.split(","):
        name, separator, amount = part.partition("=")
        if name not in {"cpu", "memory"} or not separator or name in amounts:
            raise ValueError("amounts are written like cpu=50m,memory=128Mi")
        amounts[name] = amount
    try:
        return ResourceAmounts.model_validate(amounts)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _mcm_arg(argument: str) -> str:
    flag = argument.partition("=")[0]
    if _SET_BY_OPERATOR.fullmatch(flag):
        raise ValueError(
            f"leave {flag} out; the operator sets which registration an mcm serves, as whom and where, and no other mcm"
            " shares that registration"
        )
    return argument


AccountName = Annotated[Account, BeforeValidator(_account)]
Amounts = Annotated[ResourceAmounts, BeforeValidator(_amounts)]
Domain = Annotated[str, AfterValidator(_domain)]
EtcdCredentials = Annotated[Directory, AfterValidator(etcd_credentials)]
Host = Annotated[str, AfterValidator(_host)]
HttpsUrl = Annotated[str, AfterValidator(_https)]
Interval = Annotated[str, AfterValidator(_interval)]
LabelPair = Annotated[str, AfterValidator(_label)]
McmArgument = Annotated[str, AfterValidator(_mcm_arg)]
NamedUrl = Annotated[_NamedUrl, BeforeValidator(_named_url)]
Peers = Annotated[Sequence[Mapping[str, Any]], BeforeValidator(_peers)]
Program = Annotated[Path, AfterValidator(_program)]
Size = Annotated[str, AfterValidator(_size)]
