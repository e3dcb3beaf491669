"""Kubeconfigs as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from kplane.api.names import KUBECONFIG_KEY
from kplane.pki.entries import data_of
from kplane.pki.primitives import KeyPair
from kplane.provider import ClusterConfig
from kplane.provider.errors import KubeconfigError

__all__ = ["config_of", "discovery_kubeconfig", "document_of", "render_kubeconfig"]

_CLUSTER: Final = "controlplane"
_CONTEXT: Final = "controlplane"
# The one in C writes the same in a tenth of the time; an installation of PyYAML need not have it.
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TEXT: Final = """\
apiVersion: v1
kind: Config
clusters:
- name: controlplane
  cluster:
{cluster}users:
- name: {name}
  user:
{user}contexts:
- name: controlplane
  context:
    cluster: controlplane
    user: {name}
current-context: controlplane
"""
_SERVER: Final = re.compile(r"https://[A-Za-z0-9][-A-Za-z0-9._:/]*[A-Za-z0-9/]", re.ASCII)
_NAME: Final = re.compile(r"[a-z]{2,20}")
_CREDENTIAL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+/._-]{20,}={0,2}")
"""A token, or base64: such a text means itself in YAML, without quotation marks."""
_RENDERED: Final = re.compile(
    _TEXT.format(
        cluster=f"    server: (?P<server>{_SERVER.pattern})\n"
        f"(?:    certificate-authority-data: (?P<ca>{_CREDENTIAL.pattern})\n)?",
        name=f"(?P<name>{_NAME.pattern})",
        user=f"(?:    token: (?P<token>{_CREDENTIAL.pattern})\n|"
        f"    client-certificate-data: (?P<certificate>{_CREDENTIAL.pattern})\n"
        f"    client-key-data: (?P<key>{_CREDENTIAL.pattern})\n)",
    ).replace("    user: (?P<name>", "    user: (?P<same>")
)


def render_kubeconfig(
    *,
    server: str,
    ca: bytes | None,
    user: str = "admin",
    token: str | None = None,
    client: KeyPair | None = None,
    proxy: str | None = None,
    tls_server_name: str | None = None,
) -> bytes:
    """Render a kubeconfig of one cluster, one user and one context, credentials inline.

    `server` is the URL, `ca` the CA (PEM) that its certificate is verified against (None: the system's). The user
    authenticates by bearer `token` or by `client` certificate. `proxy` is the URL of a proxy to the server.
    `tls_server_name` is the name that its certificate has; None: the host of `server`.
    """
    credentials: dict[str, str] = {}
    if token is not None:
        credentials["token"] = token
    if client is not None:
        credentials["client-certificate-data"] = base64.b64encode(client.certificate).decode()
        credentials["client-key-data"] = base64.b64encode(client.key).decode()
    cluster = {"server": server}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    if tls_server_name is not None:
        cluster["tls-server-name"] = tls_server_name
    if proxy is not None:
        cluster["proxy-url"] = proxy
    rendered = _TEXT.format(cluster=_lines(cluster), name=user, user=_lines(credentials)).encode()
    if document_of(rendered) is not rendered:
        return rendered
    # Something needs quotation marks.
    return yaml.dump(_document(cluster, user=user, credentials=credentials), Dumper=_Dumper, sort_keys=False).encode()


def discovery_kubeconfig(server: str, *, ca: bytes) -> dict[str, Any]:
    """Return the kubeconfig by which kubeadm finds a control plane: one cluster without a name, and no credentials.

    `ca` is PEM.
    """
    cluster = {"certificate-authority-data": base64.b64encode(ca).decode(), "server": server}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": ""}],
        "contexts": [],
        "current-context": "",
        "users": [],
    }


def config_of(secret: Mapping[str, Any] | None) -> ClusterConfig | None:
    """Return how to reach the API server that a published Secret is for; None where it has no kubeconfig to be read."""
    if secret is None:
        return None
    try:
        return ClusterConfig.from_kubeconfig(document_of(data_of(secret)[KUBECONFIG_KEY]))
    except (KeyError, KubeconfigError):
        return None


def document_of(kubeconfig: bytes) -> Mapping[str, Any] | bytes:
    """Return what a kubeconfig says if it has just the form that `render_kubeconfig` gives it; any other as it is.

    `ClusterConfig.from_kubeconfig` takes both. A match takes a tenth of what a parser of YAML takes.
    """
    found = _RENDERED.fullmatch(kubeconfig.decode(errors="replace"))
    if found is None or found["name"] != found["same"]:
        return kubeconfig
    cluster = {"server": found["server"], "certificate-authority-data": found["ca"]}
    credentials = {
        "token": found["token"],
        "client-certificate-data": found["certificate"],
        "client-key-data": found["key"],
    }
    given = ({name: value for name, value in part.items() if value is not None} for part in (cluster, credentials))
    return _document(next(given), user=found["name"], credentials=next(given))


def _lines(fields: Mapping[str, str]) -> str:
    return "".join(f"    {name}: {value}\n" for name, value in fields.items())


def _document(cluster: Mapping[str, str], *, user: str, credentials: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _CLUSTER, "cluster": dict(cluster)}],
        "users": [{"name": user, "user": dict(credentials)}],
        "contexts": [{"name": _CONTEXT, "context": {"cluster": _CLUSTER, "user": user}}],
        "current-context": _CONTEXT,
    }
