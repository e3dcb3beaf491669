"""Access providers of a ClusterProfile, and their configured plugins (KEP-5339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.exec_plugin import ExecPlugin, extension
from kplane.provider.errors import KubeconfigError
from kplane.provider.providers._support.condition import section

__all__ = ["AccessProvider", "AccessProviders"]

_FIELDS: Final = frozenset({"name", "execConfig", "profileSourcedCLIArgsPolicy", "profileSourcedEnvVarsPolicy"})
_ARGS_POLICIES: Final = ("Ignore", "Append")
_ENV_POLICIES: Final = ("Ignore", "AppendIfNotExists", "Replace")
_ARGS_EXTENSION: Final = "clusterprofiles.multicluster.x-k8s.io/exec/additional-args"
_ENV_EXTENSION: Final = "clusterprofiles.multicluster.x-k8s.io/exec/additional-envs"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AccessProvider:
    """Configuration of the plugin for a kind of access, which profiles offer under the same `name`.

    `exec_config` is the section `exec` of a kubeconfig's user. A command with a slash is relative to `directory`.
    Profiles may add arguments if `args_policy` is Append, and variables if `env_policy` is AppendIfNotExists (the
    configuration wins) or Replace (the profile wins). Allow additions only if you trust the writers of profiles as much
    as the program. Raises KubeconfigError for an invalid value.
    """

    name: str
    exec_config: Object
    args_policy: str = "Ignore"
    env_policy: str = "Ignore"
    directory: Path | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise KubeconfigError("an access provider has no name")
        if not isinstance(self.exec_config, Mapping):
            raise KubeconfigError(f"access provider {self.name!r} has no execConfig")
        for field, policy, supported in (
            ("profileSourcedCLIArgsPolicy", self.args_policy, _ARGS_POLICIES),
            ("profileSourcedEnvVarsPolicy", self.env_policy, _ENV_POLICIES),
        ):
            if policy not in supported:
                raise KubeconfigError(
                    f"access provider {self.name!r}: {field} {policy!r} is not known; there are {', '.join(supported)}"
                )
        try:
            self.plugin({})
        except KubeconfigError as error:
            raise KubeconfigError(f"access provider {self.name!r}: {error}") from error

    def plugin(self, cluster: Object) -> ExecPlugin:
        """Return the plugin for a cluster of a profile. Raises KubeconfigError."""
        plugin = ExecPlugin.from_kubeconfig(self.exec_config, cluster=cluster, directory=self.directory)
        if self.args_policy == "Append":
            plugin = replace(plugin, args=(*plugin.args, *_more_args(cluster)))
        if self.env_policy != "Ignore":
            own, offered = dict(plugin.env), _more_variables(cluster)
            plugin = replace(plugin, env={**own, **offered} if self.env_policy == "Replace" else {**offered, **own})
        return plugin


class AccessProviders:
    """The configured access providers; the first provider that a profile offers is used.

    Raises KubeconfigError without a provider, or for a duplicate provider.
    """

    def __init__(self, providers: Iterable[AccessProvider]) -> None:
        self._providers = tuple(providers)
        names = [provider.name for provider in self._providers]
        if not names:
            raise KubeconfigError("there is no access provider; name at least one, with its plugin")
        if len(set(names)) < len(names):
            raise KubeconfigError(f"an access provider is there twice: {', '.join(sorted(names))}")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the configuration file of KEP-5339; relative commands in it are relative to it.

        The format is JSON: `{"providers": [{"name": "…", "execConfig": {"apiVersion":
        "client.authentication.k8s.io/v1", "command": "…", "args": […], "env": [{"name": "…", "value": "…"}],
        "provideClusterInfo": true}}]}`.
        Raises KubeconfigError for an unreadable or invalid file.
        """
        try:
            document = orjson.loads(path.read_bytes())
        except OSError as error:
            raise KubeconfigError(f"cannot read the access providers in {path}: {error.strerror}") from error
        except orjson.JSONDecodeError as error:
            raise KubeconfigError(f"the access providers in {path} are no JSON: {error}") from error
        entries = section(document).get("providers")
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise KubeconfigError(f'{path} has no list of access providers: {{"providers": […]}}')
        try:
            return cls(_provider(entry, directory=path.absolute().parent) for entry in entries)
        except KubeconfigError as error:
            raise KubeconfigError(f"{path}: {error}") from error

    def config_of(self, profile: Object) -> ClusterConfig:
        """Return address and credentials of a ClusterProfile. Raises KubeconfigError if no provider is configured."""
        # If a name is in both fields, the newer field wins.
        offered = {**_offers(profile, "credentialProviders"), **_offers(profile, "accessProviders")}
        for provider in self._providers:
            if (cluster := offered.get(provider.name)) is not None:
                return replace(_config(cluster), exec_plugin=provider.plugin(cluster))
        names = ", ".join(sorted(offered)) or "none"
        configured = ", ".join(provider.name for provider in self._providers)
        raise KubeconfigError(f"its access providers are {names}, and known here are {configured}")


def _provider(entry: Object, *, directory: Path) -> AccessProvider:
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise KubeconfigError(f"an access provider has unknown fields: {', '.join(map(str, unknown))}")
    return AccessProvider(
        entry.get("name", ""),
        entry.get("execConfig", None),
        args_policy=entry.get("profileSourcedCLIArgsPolicy") or "Ignore",
        env_policy=entry.get("profileSourcedEnvVarsPolicy") or "Ignore",
        directory=directory,
    )


def _offers(profile: Object, field: str) -> dict[str, Object]:
    offers = section(profile, "status").get(field)
    return {
        offer["name"]: offer["cluster"]
        for offer in (offers if isinstance(offers, list) else ())
        if isinstance(offer, Mapping)
        and isinstance(offer.get("name"), str)
        and isinstance(offer.get("cluster"), Mapping)
    }


def _config(cluster: Object) -> ClusterConfig:
    """Return address and CA of a cluster. Without a directory, ClusterConfig refuses names of files."""
    return ClusterConfig.from_kubeconfig(
        {
            "clusters": [{"name": "profile", "cluster": cluster}],
            "contexts": [{"name": "profile", "context": {"cluster": "profile"}}],
            "current-context": "profile",
        }
    )


def _more_args(cluster: Object) -> list[str]:
    args = extension(cluster, _ARGS_EXTENSION)
    if args is None:
        return []
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise KubeconfigError(f"the extension {_ARGS_EXTENSION} has to be a list of texts")
    return args


def _more_variables(cluster: Object) -> dict[str, str]:
    variables = extension(cluster, _ENV_EXTENSION)
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(value, str) for value in variables.values()):
        raise KubeconfigError(f"the extension {_ENV_EXTENSION} has to be a mapping of texts")
    return dict(variables)
