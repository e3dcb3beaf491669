"""Destinations of connections from the API server of a control plane."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from kplane.api.extensions import ATOMIC_LIST, Extension, Rule, rules
from kplane.api.resource import ApiModel

__all__ = ["Destination"]

_IPV4: Final = "[0-9]{1,3}([.][0-9]{1,3}){3}/([89]|[12][0-9]|3[0-2])"
_IPV6: Final = "[0-9A-Fa-f:]{2,39}/(1[6-9]|[2-9][0-9]|1[01][0-9]|12[0-8])"
_REFUSED: Final = (
    "^(0+[.]|127[.]|169[.]254[.]|169[.].*/([89]|1[0-5])$|0*[0-9a-fA-F]{0,2}:|[fF][eE][89abAB]|[fF][dD]00:[eE][cC]2:)"
)
"""Pattern of networks that are, or contain, a forbidden network. Minimum prefixes of /8 (IPv4) and /16 (IPv6) make the
beginning of an address sufficient for the check.
"""
_SENTENCE: Final = (
    "must not cover loopback or link-local addresses, nor those of a cloud's metadata: 0.0.0.0/8, 127.0.0.0/8,"
    " 169.254.0.0/16, ::/8, fe80::/10, fd00:ec2::/32"
)
_NEVER: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/8", "fe80::/10", "fd00:ec2::/32")
)


def _network(text: str) -> str:
    """Validate a network beyond the checks of the API server, and return its canonical form."""
    network = ipaddress.ip_network(text)
    if re.search(_REFUSED, text) or any(
        network.version == forbidden.version and network.overlaps(forbidden) for forbidden in _NEVER
    ):
        raise ValueError(f"it {_SENTENCE}")
    return str(network)


class Destination(ApiModel):
    """A network, and the TCP ports in the network to which connections are allowed."""

    cidr: Annotated[
        str,
        StringConstraints(max_length=43, pattern=f"^({_IPV4}|{_IPV6})$"),
        AfterValidator(_network),
        Extension(
            rules(Rule(rule=f"!self.matches('{_REFUSED}')", message=f"spec.allowedDestinations[].cidr {_SENTENCE}"))
        ),
    ]
    """The network, such as 10.20.0.0/16 or fd00:20::/64; 10.20.0.5/32 is a single address. The minimum prefix length is
    /8 for IPv4, and /16 for IPv6.
    """
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(min_length=1, max_length=16), ATOMIC_LIST]
    """TCP ports, such as 443, or 10250 for kubelets."""
