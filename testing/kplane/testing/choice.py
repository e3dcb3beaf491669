"""Which cluster the tests get: decided from the option, the environment, and what the machine has."""

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
    "api": "an API server; every backend has one",
    "gc": "the controllers of kube-controller-manager: namespaces end, what nobody owns any more goes",
    "pods": "a kubelet, which runs pods",
    "images": "k8s.load_images() brings an image of this machine to the nodes",
    "reset": "the fixture clean_api_server, for which an API server's data are put back in etcd",
}
DEFAULT_KIND_CLUSTER: Final = "kplane-e2e"

_LOCAL: Final = frozenset({"api", "gc", "reset"})
_KIND: Final = frozenset({"api", "gc", "pods", "images"})
_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend, and why it is this one."""

    backend: str
    """One of `BACKENDS`, or "none"."""
    reason: str
    capabilities: frozenset[str] = frozenset()
    target: str = ""
    """existing: the context; kind: the name of the cluster."""
    exists: bool = True
    """Whether the cluster of kind is there already."""

    @property
    def summary(self) -> str:
        """The backend and the reason, for people."""
        return f"{self.backend} ({self.reason})"

    def dump(self) -> dict[str, Any]:
        """Give it as what xdist can send to its workers."""
        return {
            "backend": self.backend,
            "reason": self.reason,
            "capabilities": sorted(self.capabilities),
            "target": self.target,
            "exists": self.exists,
        }

    @classmethod
    def load(cls, sent: Mapping[str, Any]) -> Self:
        """Make it of what `dump` gave."""
        return cls(**{**sent, "capabilities": frozenset(sent["capabilities"])})


class Probes(Protocol):
    """What can be found out about the machine. Each raises `Unavailable` with a sentence where the answer is no."""

    def current_context(self) -> str:
        """Name of the kubeconfig's current context."""
        ...

    def capabilities(self, context: str) -> AbstractSet[str]:
        """What the cluster of a context can do. Asks the cluster."""
        ...

    def has_kind_cluster(self, name: str) -> bool:
        """Whether kind runs a cluster of this name; an answer says that kind and its container engine work."""
        ...

    def kind(self) -> str:
        """The directory of the program kind, which may be downloaded or built for it."""
        ...

    def programs(self, *, obtain: bool) -> str:
        """Where the programs of an embedded cluster are. `obtain`: they may be downloaded or built for it."""
        ...


def choose(option: str, *, environment: Mapping[str, str], probes: Probes) -> Choice:
    """Choose the backend. `none`, with the reason, where the one that was asked for cannot be had.

    Raises `Misconfigured` for a context that no test may touch, and for a variable whose value means nothing.
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
    """Read a variable that says yes or no; not set is no. Raises `Misconfigured` for what is neither."""
    value = environment.get(name, "")
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise Misconfigured(f"{name}={value} is neither true nor false; set it to true, or unset it.")


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
            f"{asked}: the current context is {context}, and K8S_ALLOWED_CONTEXTS {allows}. Tests create and delete "
            f"objects, so they use only a cluster that is named for it. If {context} is for tests, set "
            f"K8S_ALLOWED_CONTEXTS={context} (several with commas, patterns with *); else choose another context "
            f"by `kubectl config use-context`."
        )
    try:
        capabilities = frozenset(probes.capabilities(context))
    except Unavailable as error:
        raise Unavailable(f"{asked}; {error}") from error
    reason = f"{asked}; context {context} is allowed by {matching[0]}; can {', '.join(sorted(capabilities))}"
    return Choice(backend="existing", reason=reason, capabilities=capabilities, target=context)


def _kind(before: Sequence[str], *, environment: Mapping[str, str], probes: Probes, create: bool) -> Choice:
    name = environment.get("KIND_CLUSTER") or DEFAULT_KIND_CLUSTER
    is_true("KIND_KEEP", environment=environment)  # said now, not at the end, where it is needed
    try:
        found = probes.kind()
        exists = probes.has_kind_cluster(name)
    except Unavailable as error:
        raise Unavailable(_sentence(before, str(error))) from error
    if exists:
        reason = f"cluster {name} exists"
    elif create:
        image = environment.get("KIND_NODE_IMAGE")
        reason = f"cluster {name} will be created" + (f" of {image}" if image else "")
    else:
        raise Unavailable(_sentence(before, f"KIND_CLUSTER={name} is not there, and KIND_NODE_IMAGE is not set"))
    reason = f"{_sentence(before, reason)}; kind found in {found}"
    return Choice(backend="kind", reason=reason, capabilities=_KIND, target=name, exists=exists)


def _local(before: Sequence[str], *, probes: Probes, obtain: bool) -> Choice:
    try:
        found = probes.programs(obtain=obtain)
    except Unavailable as error:
        raise Unavailable(_sentence(before, str(error))) from error
    return Choice(backend="local", reason=_sentence(before, f"programs found in {found}"), capabilities=_LOCAL)


def _sentence(before: Sequence[str], last: str) -> str:
    return f"{', '.join(before)}; {last}"
