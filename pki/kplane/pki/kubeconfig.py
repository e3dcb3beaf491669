"""Rendering and reading of kubeconfigs."""

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
# The C implementation writes the same text in a tenth of the time. Not every installation of PyYAML has it.
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
"""A token, or base64: text that needs no quotation marks in YAML."""
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
    """Render a kubeconfig with a single cluster, user and context, and with inline credentials.

    `server` is the URL of the API server. `ca` is the CA (PEM) of its certificate; None means the system's CAs. The
    user authenticates with a bearer `token` or a `client` certificate. `proxy` is the URL of a proxy to the server.
    `tls_server_name` is the name in its certificate; None means the host of `server`.
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
    # The text is not in plain form: a value may need quotation marks, or the cluster has further fields.
    return yaml.dump(_document(cluster, user=user, credentials=credentials), Dumper=_Dumper, sort_keys=False).encode()


def discovery_kubeconfig(server: str, *, ca: bytes) -> dict[str, Any]:
    """Return the kubeconfig by which kubeadm discovers a control plane: a cluster without name and credentials.

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
    """Return the connection in a published Secret; None if the Secret has no readable kubeconfig."""
    if secret is None:
        return None
    try:
        return ClusterConfig.from_kubeconfig(document_of(data_of(secret)[KUBECONFIG_KEY]))
    except (KeyError, KubeconfigError):
        return None


def document_of(kubeconfig: bytes) -> Mapping[str, Any] | bytes:
    """Return the parsed document of a kubeconfig in the exact form of `render_kubeconfig`; other input unchanged.

    `ClusterConfig.from_kubeconfig` accepts both results. A match takes a tenth of the time of a YAML parser.
    """
    rendered = _RENDERED.fullmatch(kubeconfig.decode(errors="replace"))
    if rendered is None or rendered["name"] != rendered["same"]:
        return kubeconfig
    cluster = {"server": rendered["server"], "certificate-authority-data": rendered["ca"]}
    credentials = {
        "token": rendered["token"],
        "client-certificate-data": rendered["certificate"],
        "client-key-data": rendered["key"],
    }
    parts = ({name: value for name, value in part.items() if value is not None} for part in (cluster, credentials))
    return _document(next(parts), user=rendered["name"], credentials=next(parts))


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
