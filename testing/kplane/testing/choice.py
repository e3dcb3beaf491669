"""Chooses the cluster of the tests from the option, the environment and the programs of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol, Self

from kplane.testing.errors import Misconfigured, Unavailable

__all__ = ["BACKENDS", "CAPABILITIES", "DEFAULT_KIND_CLUSTER", "OPTIONS", "Choice", "Probes", "choose", "is_true"]

BACKENDS: Final = ("kind", "local", "existing")
OPTIONS: Final = ("auto", *BACKENDS, "none")
CAPABILITIES: Final[Mapping[str, str]] = {
    "api": "an API server; each backend has one",
    "gc": "the controllers of kube-controller-manager: deletion of namespaces, garbage collection",
    "pods": "a kubelet, which runs pods",
    "images": "k8s.load_images() loads an image of this machine into the nodes",
    "reset": "the fixture clean_api_server, which resets an API server's data in etcd",
}
DEFAULT_KIND_CLUSTER: Final = "kplane-e2e"

_LOCAL: Final = frozenset({"api", "gc", "reset"})
_KIND: Final = frozenset({"api", "gc", "pods", "images"})
_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend and the reason for it."""

    backend: str
    """A name of `BACKENDS`, or "none"."""
    reason: str
    capabilities: frozenset[str] = frozenset()
    target: str = ""
    """Context (existing) or name of the cluster (kind)."""
    exists: bool = True
    """False if the kind cluster must be created."""

    @property
    def summary(self) -> str:
        """The backend and the reason, in a single line."""
        return f"{self.backend} ({self.reason})"

    def dump(self) -> dict[str, Any]:
        """Convert to values that xdist can send to its workers."""
        return {
            "backend": self.backend,
            "reason": self.reason,
            "capabilities": sorted(self.capabilities),
            "target": self.target,
            "exists": self.exists,
        }

    @classmethod
    def load(cls, sent: Mapping[str, Any]) -> Self:
        """Read the values that `dump` returned."""
        return cls(**{**sent, "capabilities": frozenset(sent["capabilities"])})


class Probes(Protocol):
    """Probes of the machine. Each method raises `Unavailable` with a reason if the probe fails."""

    def current_context(self) -> str:
        """Return the name of the kubeconfig's current context."""
        ...

    def capabilities(self, context: str) -> AbstractSet[str]:
        """Ask the cluster of a context for its capabilities."""
        ...

    def has_kind_cluster(self, name: str) -> bool:
        """Report whether kind runs a cluster of this name. Raises `Unavailable` without kind or a container engine."""
        ...

    def kind(self) -> str:
        """Return the directory of the program kind. Downloads or builds it if necessary."""
        ...

    def programs(self, *, obtain: bool) -> str:
        """Return the directories of an embedded cluster's programs. With `obtain`, download or build them."""
        ...


def choose(option: str, *, environment: Mapping[str, str], probes: Probes) -> Choice:
    """Choose the backend. Returns a choice of `none`, with a reason, if the requested backend is not available.

    Raises `Misconfigured` for a context that tests must not use, and for an invalid variable.
    """
    try:
        match option:
            case "none":
                return Choice(backend="none", reason="--k8s=none")
            case "existing":
                return _existing("--k8s=existing", environment=environment, probes=probes)
            case "kind":
                return _kind(["--k8s=kind"], environment=environment, probes=probes, create=True)
            case "local":
                return _local(["--k8s=local"], probes=probes, obtain=True)
            case _:
                return _automatic(environment=environment, probes=probes)
    except Unavailable as error:
        return Choice(backend="none", reason=str(error))


def is_true(name: str, *, environment: Mapping[str, str]) -> bool:
    """Read a boolean variable, by default false. Raises `Misconfigured` for an invalid value."""
    value = environment.get(name, "")
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise Misconfigured(f"failed to read {name}={value}: expected true or false; set it to true, or unset it")


def _automatic(*, environment: Mapping[str, str], probes: Probes) -> Choice:
    if is_true("USE_EXISTING_CLUSTER", environment=environment):
        return _existing("auto: USE_EXISTING_CLUSTER", environment=environment, probes=probes)
    passed = ["auto: no cluster named by USE_EXISTING_CLUSTER"]
    if environment.get("KIND_CLUSTER") or environment.get("KIND_NODE_IMAGE"):
        try:
            return _kind(
                passed, environment=environment, probes=probes, create=bool(environment.get("KIND_NODE_IMAGE"))
            )
        except Unavailable as error:
            passed = [str(error)]
    else:
        passed.append("no KIND_CLUSTER/KIND_NODE_IMAGE")
    return _local(passed, probes=probes, obtain=False)


def _existing(asked: str, *, environment: Mapping[str, str], probes: Probes) -> Choice:
    try:
        context = probes.current_context()
    except Unavailable as error:
        raise Unavailable(f"{asked}; {error}") from error
    allowed = [pattern.strip() for pattern in environment.get("K8S_ALLOWED_CONTEXTS", "").split(",") if pattern.strip()]
    matching = [pattern for pattern in allowed if fnmatchcase(context, pattern)]
    if not matching:
        allows = f"allows {', '.join(allowed)}" if allowed else "is not set"
        raise Misconfigured(
            f"{asked}: failed to use the current context {context}: K8S_ALLOWED_CONTEXTS {allows}. Tests create and "
            f"delete objects, so they need an allowed context. If {context} is for tests, set "
            f"K8S_ALLOWED_CONTEXTS={context} (several with commas, patterns with *). If not, choose another context "
            f"with `kubectl config use-context`."
        )
    try:
        capabilities = frozenset(probes.capabilities(context))
    except Unavailable as error:
        raise Unavailable(f"{asked}; {error}") from error
    reason = f"{asked}; context {context} is allowed by {matching[0]}; has {', '.join(sorted(capabilities))}"
    return Choice(backend="existing", reason=reason, capabilities=capabilities, target=context)


def _kind(before: Sequence[str], *, environment: Mapping[str, str], probes: Probes, create: bool) -> Choice:
    name = environment.get("KIND_CLUSTER") or DEFAULT_KIND_CLUSTER
    is_true("KIND_KEEP", environment=environment)  # fail before the tests, not after them
    try:
        directory = probes.kind()
        exists = probes.has_kind_cluster(name)
    except Unavailable as error:
        raise Unavailable(_sentence(before, str(error))) from error
    if exists:
        reason = f"cluster {name} exists"
    elif create:
        image = environment.get("KIND_NODE_IMAGE")
        reason = f"cluster {name} will be created" + (f" from {image}" if image else "")
    else:
        raise Unavailable(_sentence(before, f"KIND_CLUSTER={name} does not exist and KIND_NODE_IMAGE is not set"))
    reason = f"{_sentence(before, reason)}; kind found in {directory}"
    return Choice(backend="kind", reason=reason, capabilities=_KIND, target=name, exists=exists)


def _local(before: Sequence[str], *, probes: Probes, obtain: bool) -> Choice:
    try:
        directories = probes.programs(obtain=obtain)
    except Unavailable as error:
        raise Unavailable(_sentence(before, str(error))) from error
    return Choice(backend="local", reason=_sentence(before, f"programs found in {directories}"), capabilities=_LOCAL)


def _sentence(before: Sequence[str], last: str) -> str:
    return f"{', '.join(before)}; {last}"
