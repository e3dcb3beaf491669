"""Entry of a kubeconfig that makes kubectl request the credential of a control plane from kplane."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from kplane.binaries.interpreter import module_command
from kplane.cli.credential_cache import keep, render
from kplane.provider import ClusterConfig

__all__ = [
    "asked_context",
    "asked_name",
    "asked_uid",
    "is_plugin",
    "plugin_entry",
    "plugin_of",
    "print_credential",
    "renew_plugin",
]

_API_VERSION: Final = "client.authentication.k8s.io/v1"
_COMMAND: Final = tuple(module_command("kplane.cli.credential"))
_FORMER: Final = ["-m", "kplane.cli.main", "credential"]
"""Arguments of kplane 0.1 and before, which execute code of the working directory."""


def plugin_entry(
    name: str, *, uid: str | None, internal: bool, context: str, kubeconfigs: Sequence[Path]
) -> dict[str, Any]:
    """Return the field `exec` of a kubeconfig.

    `context` and the files `kubeconfigs` identify the management cluster, independent of KUBECONFIG when kubectl asks.
    The credential is cached under `uid`, the uid of the control plane. Without a uid, kubectl always waits for the
    management cluster.
    """
    program, *options = _COMMAND
    arguments = [*options, name]
    arguments += ["--internal"] if internal else []
    arguments += ["--uid", uid] if uid is not None else []
    return {
        "apiVersion": _API_VERSION,
        "command": program,
        "args": [*arguments, "--context", context],
        "interactiveMode": "Never",
        # kubectl resolves a relative path in its own working directory.
        "env": [{"name": "KUBECONFIG", "value": os.pathsep.join(str(path.absolute()) for path in kubeconfigs)}],
    }


def is_plugin(plugin: Mapping[str, Any]) -> bool:
    """Return whether an entry was written by this or a former version of kplane, and names its context."""
    arguments = plugin.get("args") or []
    return asked_context(plugin) is not None and (_is_present(arguments) or _is_former(arguments))


def asked_context(plugin: Mapping[str, Any]) -> str | None:
    """Return the context of the management cluster that an entry uses; None if the entry names none."""
    arguments = plugin.get("args") or []
    return str(arguments[-1]) if arguments[-2:-1] == ["--context"] else None


def asked_uid(plugin: Mapping[str, Any]) -> str | None:
    """Return the uid of the control plane whose credential an entry requests; None if the entry names none."""
    arguments = [str(argument) for argument in plugin.get("args") or []]
    return arguments[arguments.index("--uid") + 1] if "--uid" in arguments[:-1] else None


def asked_name(plugin: Mapping[str, Any]) -> str | None:
    """Return the name of the control plane whose credential an entry of kplane requests; None for other entries."""
    arguments = [str(argument) for argument in plugin.get("args") or []]
    if not is_plugin(plugin):
        return None
    return arguments[len(_FORMER if _is_former(arguments) else _COMMAND[1:])]


def plugin_of(user: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the exec plugin of an entry in the section `users` of a kubeconfig; empty if there is none."""
    plugin: Mapping[str, Any] = (user.get("user") or {}).get("exec") or {}
    return plugin


def renew_plugin(plugin: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an entry of a former version in the form of this version; None if it needs no change."""
    arguments = plugin.get("args") or []
    if not _is_former(arguments):
        return None
    program, *options = _COMMAND
    return {**plugin, "command": program, "args": [*options, *arguments[len(_FORMER) :]]}


def print_credential(config: ClusterConfig, *, uid: str | None) -> str:
    """Return a credential as an ExecCredential for kubectl and other clients, and cache it under the uid.

    The credential is not cached without a uid, or if its lifetime is unknown.
    """
    members: dict[str, str] = {}
    if config.token is not None:
        members["token"] = config.token
    if config.client_certificate is not None and config.client_key is not None:
        members["clientCertificateData"] = config.client_certificate.decode()
        members["clientKeyData"] = config.client_key.decode()
    status = json.dumps(members)[1:-1]
    life = _life(config)
    if uid is None or life is None:
        return render(status, expires=life[1] if life is not None else None)
    issued, expires = life
    return keep(uid, status, issued=issued, expires=expires)


def _is_present(arguments: Sequence[str]) -> bool:
    options = _COMMAND[1:]
    return tuple(arguments[: len(options)]) == options


def _is_former(arguments: Sequence[str]) -> bool:
    return list(arguments[: len(_FORMER)]) == _FORMER


def _life(config: ClusterConfig) -> tuple[float, float] | None:
    """Return the start and the expiry of the credential, in seconds since 1970; None if they are unknown."""
    try:
        if config.token is not None:
            payload = config.token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            return float(claims["iat"]), float(claims["exp"])
        if config.client_certificate is not None:
            certificate = x509.load_pem_x509_certificate(config.client_certificate)
            return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    except (IndexError, KeyError, TypeError, ValueError):
        # Tokens of other issuers may lack these claims.
        return None
    return None
