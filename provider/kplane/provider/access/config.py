"""Address, trust and credentials of an API server."""

from __future__ import annotations

import base64
import binascii
import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kplane.provider.access.call_limits import CallLimits
from kplane.provider.access.exec_plugin import ExecPlugin, require_no_text
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.access.kubeconfigs import kubeconfig_paths, merged_kubeconfig, parse_kubeconfig, read_document
from kplane.provider.errors import KubeconfigError

if TYPE_CHECKING:  # loaded only when there is a certificate to read
    from cryptography.x509 import Certificate

__all__ = ["ClusterConfig"]

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFUSED_USER_FIELDS: Final = {
    "auth-provider": "auth providers were removed from Kubernetes",
    "username": "user name and password were removed from Kubernetes",
    "password": "user name and password were removed from Kubernetes",
}


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Holds address, trust and credentials of an API server. Its repr shows no secret.

    `server` is an https URL, which may have a path. `ca_data` is PEM (None: the system's CAs), and so are
    `client_certificate` and `client_key`. `token_file` is read again while the client runs. `exec_plugin` runs for
    credentials, and again when they expire or are refused. `impersonation` is the user of the requests, `proxy`
    the http URL of a proxy to the server. `calls` are time-outs and limits of this cluster, which a provider sets and
    a kubeconfig cannot. With `insecure_skip_tls_verify` the server is not verified, so a machine in the middle gets
    the credentials. Raises KubeconfigError if a value cannot be used.
    """

    server: str
    ca_data: bytes | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    client_certificate: bytes | None = field(default=None, repr=False)
    client_key: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    exec_plugin: ExecPlugin | None = None
    impersonation: Impersonation | None = None
    proxy: str | None = field(default=None, repr=False)
    calls: CallLimits = CallLimits()  # noqa: RUF009 - frozen
    insecure_skip_tls_verify: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "server", _checked_server(self.server))
        if self.ca_data is not None:
            if self.insecure_skip_tls_verify:
                raise KubeconfigError("there is a CA and insecure-skip-tls-verify besides; give only one of them")
            _certificates(self.ca_data, what="the CA of the cluster")
        if (self.client_certificate is None) != (self.client_key is None):
            raise KubeconfigError(
                "a client certificate needs its key and the other way round; only one of them is given"
            )
        if self.client_certificate is not None:
            _subject(self.client_certificate)
        name = self.tls_server_name or ""
        if not (name.isascii() and name.isprintable()):
            raise KubeconfigError("tls-server-name is no name of a host; write one that is not ASCII as xn--…")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise KubeconfigError("the token is empty or has characters that no HTTP header can carry")
        if self.exec_plugin is not None and (self.token or self.token_file or self.client_certificate):
            raise KubeconfigError("there is an exec plugin and a token or certificate besides; give only one of them")
        if self.proxy is not None:
            object.__setattr__(self, "proxy", _checked_proxy(self.proxy))

    @classmethod
    def from_kubeconfig(
        cls,
        source: str | bytes | Mapping[str, Any],
        *,
        context: str | None = None,
        directory: Path | None = None,
        exec_plugins: bool | Collection[str] = False,
        allow_insecure: bool = False,
    ) -> ClusterConfig:
        """Read a context of a kubeconfig, by default its current context.

        `source` is the text or the parsed document. Files are looked up below `directory`. Without it, files are
        refused, so that a kubeconfig of another party cannot name files of this machine. Exec plugins are refused,
        unless `exec_plugins` is true or contains the command as written. A cluster with insecure-skip-tls-verify is
        refused, unless `allow_insecure` is true. Text is limited to 256 KiB, without YAML aliases of mappings or lists.

        Raises KubeconfigError with the reason.
        """
        require_no_text(exec_plugins)
        document = source if isinstance(source, Mapping) else parse_kubeconfig(source)
        name = context if context is not None else document.get("current-context")
        if not isinstance(name, str) or not name:
            raise KubeconfigError("the kubeconfig has no current-context, and none was chosen")
        selected = _named(document, "contexts", "context", name)
        cluster = _named(document, "clusters", "cluster", selected.get("cluster"))
        user = _named(document, "users", "user", selected["user"]) if selected.get("user") else {}
        insecure = bool(cluster.get("insecure-skip-tls-verify"))
        if insecure and not allow_insecure:
            raise KubeconfigError(
                "insecure-skip-tls-verify is set, and not allowed here (allow_insecure); give the cluster's CA"
            )
        for refused, why in _REFUSED_USER_FIELDS.items():
            if user.get(refused):
                raise KubeconfigError(
                    f"the user of context {name!r} has {refused!r}: {why}; use a token or a certificate"
                )
        token_file = _text(user, "tokenFile")
        return cls(
            server=_text(cluster, "server") or "",
            ca_data=_data(cluster, "certificate-authority", directory),
            tls_server_name=_text(cluster, "tls-server-name"),
            client_certificate=_data(user, "client-certificate", directory),
            client_key=_data(user, "client-key", directory),
            token=None if token_file else _text(user, "token"),
            token_file=_path(token_file, "tokenFile", directory) if token_file else None,
            exec_plugin=_plugin(user.get("exec"), cluster=cluster, directory=directory, allowed=exec_plugins),
            impersonation=Impersonation.from_kubeconfig(user),
            proxy=_text(cluster, "proxy-url"),
            insecure_skip_tls_verify=insecure,
        )

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        context: str | None = None,
        exec_plugins: bool | Collection[str] = False,
        allow_insecure: bool = False,
    ) -> ClusterConfig:
        """Read a kubeconfig file, which may be large. Paths in the file are relative to its directory.

        `exec_plugins` and `allow_insecure` are those of `from_kubeconfig`.
        """
        try:
            document = read_document(path)
        except OSError as error:
            raise KubeconfigError(f"cannot read kubeconfig {path}: {error.strerror}") from error
        directory = path.absolute().parent
        return cls.from_kubeconfig(
            document,
            context=context,
            directory=directory,
            exec_plugins=exec_plugins,
            allow_insecure=allow_insecure,
        )

    @classmethod
    def default(cls, *, context: str | None = None, environment: Mapping[str, str] | None = None) -> ClusterConfig:
        """Find the cluster as kubectl does: the files of KUBECONFIG, else `~/.kube/config`, else the pod's own cluster.

        If several files have an entry of the same name, the first entry counts. Exec plugins are allowed, because the
        files belong to the user. Raises KubeconfigError if there is no cluster, or if a file cannot be read.
        """
        variables = os.environ if environment is None else environment
        paths = kubeconfig_paths(variables)
        existing = [path for path in paths if path.is_file()]
        if not existing and context is None and variables.get("KUBERNETES_SERVICE_HOST"):
            return cls.in_cluster(environment=variables)
        if not existing:
            raise KubeconfigError(f"there is no kubeconfig at {', '.join(map(str, paths))}; set KUBECONFIG")
        return cls.from_kubeconfig(merged_kubeconfig(existing), context=context, directory=Path("/"), exec_plugins=True)

    @classmethod
    def in_cluster(
        cls, *, directory: Path = _SERVICE_ACCOUNT, environment: Mapping[str, str] | None = None
    ) -> ClusterConfig:
        """Use the ServiceAccount of the pod of this process. Raises KubeconfigError outside of a pod."""
        variables = os.environ if environment is None else environment
        host, port = variables.get("KUBERNETES_SERVICE_HOST"), variables.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise KubeconfigError("not in a pod: KUBERNETES_SERVICE_HOST is not set; give a kubeconfig")
        try:
            ca_data = (directory / "ca.crt").read_bytes()
        except OSError as error:
            raise KubeconfigError(f"cannot read {directory / 'ca.crt'}: {error.strerror}") from error
        address = f"[{host}]" if ":" in host else host
        return cls(server=f"https://{address}:{port}", ca_data=ca_data, token_file=directory / "token")

    def with_server(self, server: str) -> ClusterConfig:
        """Return the same trust and credentials for another address.

        Raises KubeconfigError if the system's CAs are trusted and host or port differ: any server with a public
        certificate would get the credentials.
        """
        moved = replace(self, server=server)
        if self.ca_data is None and _authority(moved.server) != _authority(self.server):
            raise KubeconfigError(
                f"credentials for {self.server} are not sent to {moved.server}, because the kubeconfig has no CA of its"
                " own; put certificate-authority-data into it"
            )
        return moved

    def continues(self, previous: ClusterConfig) -> bool:
        """Tell whether cluster and identity are those of `previous`, except for renewed credentials or a renewed CA.

        Token and certificate may differ. CA bundles may differ if they share a CA, because a rotation trusts both.
        Other time-outs or limits count as another cluster, which gets a new client.
        """
        return (
            (self.server, self.tls_server_name, self.proxy, self.calls, self._identity())
            == (previous.server, previous.tls_server_name, previous.proxy, previous.calls, previous._identity())
        ) and _share_a_ca(self.ca_data, previous.ca_data)

    def to_kubeconfig(self) -> dict[str, Any]:
        """Return a kubeconfig document with a single context, including the credentials."""
        cluster: dict[str, Any] = {"server": self.server}
        if self.ca_data is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca_data).decode()
        if self.insecure_skip_tls_verify:
            cluster["insecure-skip-tls-verify"] = True
        if self.tls_server_name is not None:
            cluster["tls-server-name"] = self.tls_server_name
        if self.proxy is not None:
            cluster["proxy-url"] = self.proxy
        user: dict[str, Any] = {}
        if self.client_certificate is not None and self.client_key is not None:
            user["client-certificate-data"] = base64.b64encode(self.client_certificate).decode()
            user["client-key-data"] = base64.b64encode(self.client_key).decode()
        if self.token_file is not None:
            user["tokenFile"] = str(self.token_file)
        elif self.token is not None:
            user["token"] = self.token
        if self.exec_plugin is not None:
            user["exec"] = self.exec_plugin.to_kubeconfig()
            cluster["extensions"] = self.exec_plugin.extensions()
        if self.impersonation is not None:
            user |= self.impersonation.to_kubeconfig()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default", "cluster": cluster}],
            "users": [{"name": "default", "user": user}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
            "current-context": "default",
        }

    def _identity(self) -> tuple[object, ...]:
        kinds: list[object] = [self.exec_plugin, self.impersonation, self.insecure_skip_tls_verify]
        if self.client_certificate is not None:
            kinds.append(f"certificate {_subject(self.client_certificate)}")
        if self.token_file is not None:
            kinds.append(f"token file {self.token_file}")
        elif self.token is not None:
            kinds.append("token")
        return tuple(kinds)


def _authority(server: str) -> tuple[str | None, int]:
    parts = urlsplit(server)
    return parts.hostname, parts.port or 443


def _checked_server(server: str) -> str:
    # Errors do not show an invalid URL, because it may contain a password.
    try:
        url = urlsplit(server)
        host, _ = url.hostname, url.port
    except ValueError:
        raise KubeconfigError("server is no URL, such as https://10.0.0.1:6443") from None
    if "@" in url.netloc or url.query or url.fragment or not (server.isascii() and server.isprintable()):
        raise KubeconfigError(f"server of host {host!r} may only have a host, a port and a path")
    if url.scheme != "https" or not host:
        whose = f" of host {host!r}" if host else ""
        raise KubeconfigError(f"server{whose} has to be an https URL, such as https://10.0.0.1:6443")
    if any(part in {".", ".."} for part in url.path.split("/")) or " " in server:
        raise KubeconfigError(f"server of host {host!r} has a path that is not in its plain form")
    return server.rstrip("/")


def _checked_proxy(proxy: str) -> str:
    try:
        url = urlsplit(proxy)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise KubeconfigError("proxy-url is no URL") from error
    if url.scheme != "http":
        raise KubeconfigError(
            f"proxy-url begins with {url.scheme!r}: only http proxies are supported; the"
            " connection to the cluster is encrypted through the proxy"
        )
    if not host or url.path.strip("/") or url.query or url.fragment or not (proxy.isascii() and proxy.isprintable()):
        raise KubeconfigError("proxy-url may only have a host and a port, such as http://10.0.0.1:3128")
    return proxy


def _plugin(
    section: object, *, cluster: Mapping[str, Any], directory: Path | None, allowed: bool | Collection[str]
) -> ExecPlugin | None:
    if not section:
        return None
    if not isinstance(section, Mapping):
        raise KubeconfigError("'exec' in the kubeconfig has to be a mapping")
    if allowed is False:
        raise KubeconfigError(
            "the kubeconfig has an exec credential plugin that may not run here; use a token or a certificate, or"
            " trust its author by exec_plugins (trusted of FileProvider)"
        )
    command = section.get("command")
    if not isinstance(command, str):
        raise KubeconfigError("the command of an exec plugin has to be a text")
    if allowed is not True and command not in allowed:
        raise KubeconfigError(f"exec plugin {command!r} is not one of those that are allowed here")
    return ExecPlugin.from_kubeconfig(section, cluster=cluster, directory=directory)


@functools.lru_cache(maxsize=256)
def _certificates(pem: bytes, *, what: str) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise KubeconfigError(f"{what} is no certificate in PEM form") from error


def _subject(client_certificate: bytes) -> str:
    """Return the subject of a client certificate, the first in its chain."""
    first = _certificates(client_certificate, what="the client certificate")[0]
    try:
        return first.subject.rfc4514_string()
    except (ValueError, TypeError) as error:
        raise KubeconfigError("the subject of the client certificate cannot be read; have one issued anew") from error


def _named(document: Mapping[str, Any], section: str, kind: str, name: object) -> Mapping[str, Any]:
    entries = document.get(section)
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get(kind), Mapping):
            content: Mapping[str, Any] = entry[kind]
            return content
    raise KubeconfigError(f"the kubeconfig has no {kind} {name!r} in {section}")


def _share_a_ca(bundle: bytes | None, other: bytes | None) -> bool:
    if bundle is None or other is None or bundle == other:
        return bundle == other
    return not set(_certificates(bundle, what="the CA")).isdisjoint(_certificates(other, what="the CA"))


def _text(section: Mapping[str, Any], key: str) -> str | None:
    value = section.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise KubeconfigError(f"{key!r} in the kubeconfig has to be text")
    return value.strip()


def _data(section: Mapping[str, Any], key: str, directory: Path | None) -> bytes | None:
    inline = _text(section, f"{key}-data")
    if inline is not None:
        try:
            return base64.b64decode(inline, validate=True)
        except (binascii.Error, ValueError) as error:
            raise KubeconfigError(f"'{key}-data' in the kubeconfig is not base64") from error
    name = _text(section, key)
    if name is None:
        return None
    path = _path(name, key, directory)
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"cannot read {path}, the {key!r} of the kubeconfig: {error.strerror}") from error


def _path(name: str, key: str, directory: Path | None) -> Path:
    if directory is None:
        raise KubeconfigError(f"{key!r} in the kubeconfig refers to a file; here only inline data is accepted")
    return directory / name
