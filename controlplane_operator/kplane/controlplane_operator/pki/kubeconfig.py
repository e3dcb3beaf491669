"""Kubeconfigs as text."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from kplane.controlplane_operator.pki.primitives import KeyPair

__all__ = ["render_kubeconfig"]

_CLUSTER = "controlplane"
_CONTEXT = "controlplane"
# The one in C writes the same in a tenth of the time; an installation of PyYAML need not have it.
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def render_kubeconfig(
    *, server: str, ca: bytes | None, user: str = "admin", token: str | None = None, client: KeyPair | None = None
) -> bytes:
    """Render a kubeconfig of one cluster, one user and one context, credentials inline.

    `server` is the URL, `ca` the CA (PEM) that its certificate is verified against (None: the system's). The user
    authenticates by bearer `token` or by `client` certificate.
    """
    credentials: dict[str, Any] = {}
    if token is not None:
        credentials["token"] = token
    if client is not None:
        credentials["client-certificate-data"] = base64.b64encode(client.certificate).decode()
        credentials["client-key-data"] = base64.b64encode(client.key).decode()
    cluster: dict[str, Any] = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _CLUSTER, "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": _CONTEXT, "context": {"cluster": _CLUSTER, "user": user}}],
        "current-context": _CONTEXT,
    }
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False).encode()
