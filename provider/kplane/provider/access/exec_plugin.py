"""Credentials from programs: client-go's exec plugins, of the group client.authentication.k8s.io.

The protocol is that of client-go's plugin/pkg/client/auth/exec: the program gets an ExecCredential in
KUBERNETES_EXEC_INFO, and prints an ExecCredential with a status to standard output.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final

import orjson

from kplane.provider.aio.programs import end_program, start_program
from kplane.provider.errors import KubeconfigError

__all__ = ["ExecCredential", "ExecPlugin", "require_no_text"]

_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_MODES: Final = frozenset({None, "", "Never", "IfAvailable", "Always"})
_EXTENSION: Final = "client.authentication.k8s.io/exec"
_MAX_OUTPUT: Final = 1024**2
_SHOWN: Final = 400
_SECRET_LIKE: Final = re.compile(r"[\w.+/=~-]{24,}")


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """Credentials of a plugin: a token, a certificate with its key (PEM), or both; valid until `expires`, if set."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: dt.datetime | None = None

    @property
    def expired(self) -> bool:
        """Whether the credential has expired."""
        return self.expires is not None and dt.datetime.now(dt.UTC) >= self.expires


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """Describes a program that prints credentials. Its repr hides arguments and environment.

    `command` is looked up on PATH if it has no slash. `env` is added to the environment of this process. With
    `provide_cluster_info` the program gets the cluster and `cluster_config`, any JSON value. The program has no
    standard input, and is killed after `timeout_seconds`. Errors about a missing program show `install_hint`. Raises
    KubeconfigError if a value cannot be used.
    """

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    api_version: str = _VERSIONS[0]
    provide_cluster_info: bool = False
    cluster_config: Any = field(default=None, repr=False, hash=False)
    install_hint: str = field(default="", repr=False)
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "env", dict(self.env))
        texts: tuple[object, ...] = (self.command, *self.args, *self.env, *self.env.values())
        if not self.command or not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise KubeconfigError("an exec plugin has to have a command; command, arguments and environment are texts")
        if not all(name and "=" not in name for name in self.env):
            raise KubeconfigError(f"exec plugin {self.command!r}: a variable has no name, or one with '='")
        if self.api_version not in _VERSIONS:
            raise KubeconfigError(
                f"exec plugin {self.command!r} has apiVersion {self.api_version!r}; known are {' and '.join(_VERSIONS)}"
            )

    @classmethod
    def from_kubeconfig(
        cls, section: Mapping[str, Any], *, cluster: Mapping[str, Any] | None = None, directory: Path | None = None
    ) -> ExecPlugin:
        """Read the `exec` of a kubeconfig's user, or the `execConfig` of a KEP-5339 access provider.

        `cluster` is the section of the cluster, whose extension client.authentication.k8s.io/exec goes to the plugin. A
        command with a slash is looked up below `directory`, as in client-go, unless it is absolute. Raises
        KubeconfigError if it cannot be run here.
        """
        command, mode = section.get("command"), section.get("interactiveMode")
        if not isinstance(command, str) or not command:
            raise KubeconfigError("the exec plugin has no command")
        if mode == "Always":
            raise KubeconfigError(
                f"exec plugin {command!r} needs a terminal (interactiveMode Always), which is missing here; use"
                " another plugin, a token or a certificate"
            )
        if not isinstance(mode, (str, NoneType)) or mode not in _MODES:
            raise KubeconfigError(f"exec plugin {command!r} has an unknown interactiveMode")
        if "/" in command and not command.startswith("/"):
            if directory is None:
                raise KubeconfigError(f"exec plugin {command!r}: give its absolute path, or its name alone")
            command = str(directory / command)
        args, hint = section.get("args") or [], section.get("installHint")
        if not isinstance(args, list):
            raise KubeconfigError(f"exec plugin {command!r}: args have to be a list of texts")
        return cls(
            command=command,
            args=tuple(args),
            env=_environment(section.get("env"), command=command),
            api_version=str(section.get("apiVersion") or ""),
            provide_cluster_info=section.get("provideClusterInfo") is True,
            cluster_config=extension(cluster or {}, _EXTENSION),
            install_hint=hint if isinstance(hint, str) else "",
        )

    def to_kubeconfig(self) -> dict[str, Any]:
        """Return the `exec` of a kubeconfig's user."""
        return {
            "apiVersion": self.api_version,
            "command": self.command,
            "args": list(self.args),
            "env": [{"name": name, "value": value} for name, value in self.env.items()],
            "provideClusterInfo": self.provide_cluster_info,
            "interactiveMode": "Never",
            **({"installHint": self.install_hint} if self.install_hint else {}),
        }

    def extensions(self) -> list[dict[str, Any]]:
        """Return the `extensions` of a kubeconfig's cluster for this plugin."""
        return [] if self.cluster_config is None else [{"name": _EXTENSION, "extension": self.cluster_config}]

    async def run(self, *, cluster: Mapping[str, Any]) -> ExecCredential:
        """Run the program and return its credentials. `provide_cluster_info` decides whether it gets `cluster`.

        All its processes have ended afterwards. Raises KubeconfigError, without any secret, if the program cannot be
        run, fails, takes too long, or prints no ExecCredential.
        """
        spec: dict[str, Any] = {"interactive": False}
        if self.provide_cluster_info:
            spec["cluster"] = {**cluster, "config": self.cluster_config}
        information = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {**os.environ, **self.env, "KUBERNETES_EXEC_INFO": orjson.dumps(information).decode()}
        try:
            process = await start_program(self.command, *self.args, env=environment)
        except OSError as error:
            hint = f": {_plain(self.install_hint)}" if self.install_hint else ""
            raise KubeconfigError(f"exec plugin {self.command!r} cannot be run: {error.strerror}{hint}") from None
        try:
            async with asyncio.timeout(self.timeout_seconds):
                printed, said = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                status = await process.wait()
        except BaseException as error:
            await end_program(process)
            if not isinstance(error, TimeoutError):
                raise
            raise KubeconfigError(
                f"exec plugin {self.command!r} took longer than {self.timeout_seconds:g} s and was ended"
            ) from None
        if status != 0:
            raise KubeconfigError(f"exec plugin {self.command!r} failed with exit code {status}{_complaint(said)}")
        if len(printed) > _MAX_OUTPUT:
            raise KubeconfigError(f"exec plugin {self.command!r} printed more than {_MAX_OUTPUT} bytes; refused")
        return self._parse(printed)

    def _parse(self, printed: bytes) -> ExecCredential:
        who = f"exec plugin {self.command!r}"
        # Do not chain the error of the parser, because it contains the printed credentials.
        with contextlib.suppress(orjson.JSONDecodeError):
            answer = orjson.loads(printed)
            if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
                raise KubeconfigError(f"{who} printed something that is no ExecCredential")
            if answer.get("apiVersion") != self.api_version:
                raise KubeconfigError(f"{who} is to speak {self.api_version}, and answered in another version")
            status = answer.get("status")
            if not isinstance(status, dict):
                raise KubeconfigError(f"{who} returned no status")
            return _credential(status, who=who)
        raise KubeconfigError(f"{who} printed something that is no JSON")


def require_no_text(allowed: bool | Collection[str]) -> None:
    """Raise KubeconfigError if the allowed commands are a string, of which any substring would match."""
    if isinstance(allowed, (str, bytes)):
        raise KubeconfigError(f"exec_plugins is a text; give a collection of commands, such as {{{allowed!r}}}")


def _credential(status: Mapping[str, Any], *, who: str) -> ExecCredential:
    token, certificate, key, expires = (
        status.get(name) or None for name in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
    )
    if not all(value is None or isinstance(value, str) for value in (token, certificate, key, expires)):
        raise KubeconfigError(f"{who} returned a status whose fields are no texts")
    if token is None and certificate is None and key is None:
        raise KubeconfigError(f"{who} returned no token, and no certificate with its key")
    if (certificate is None) != (key is None):
        raise KubeconfigError(f"{who} returned only one of certificate and key")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise KubeconfigError(f"{who} returned a token that no HTTP header can carry")
    return ExecCredential(
        token,
        None if certificate is None else certificate.encode(),
        None if key is None else key.encode(),
        None if expires is None else _time(expires, who=who),
    )


def _time(text: str, *, who: str) -> dt.datetime:
    with contextlib.suppress(ValueError):
        time = dt.datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time
    raise KubeconfigError(f"{who} returned an expirationTimestamp that is no time of RFC 3339")


def _environment(entries: object, *, command: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else [entries] if entries is not None else []:
        name, value = (entry.get("name"), entry.get("value")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(value, str):
            raise KubeconfigError(f"exec plugin {command!r}: env has to be a list of names and values")
        variables[name] = value
    return variables


def extension(cluster: Mapping[str, Any], name: str) -> Any:
    """Return an extension of a kubeconfig's cluster, or None."""
    entries = cluster.get("extensions")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and entry.get("name") == name:
            return entry.get("extension")
    return None


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end, but keep only little more than the limit."""
    read = b""
    while stream is not None and len(read) <= _MAX_OUTPUT and (chunk := await stream.read(65536)):
        read += chunk
    if len(read) > _MAX_OUTPUT and stream is not None:
        while await stream.read(65536):  # keep the pipe empty, so that the program can exit
            pass
    return read


def _complaint(said: bytes) -> str:
    # Programs print the reason last. Hide text that may be a secret.
    text = _SECRET_LIKE.sub("[hidden]", said.decode("utf-8", errors="replace"))
    return f": {_plain(text[-_SHOWN:].strip())}" if text.strip() else ""


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
