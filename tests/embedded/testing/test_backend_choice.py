"""Choice of the backend by option, environment and probes of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from kplane.testing.choice import CAPABILITIES, Choice, choose, is_true
from kplane.testing.errors import Misconfigured, Unavailable


@dataclass(frozen=True)
class Found:
    """Probes of a fake machine. None means that the machine lacks the item, and its probe raises Unavailable."""

    context: str | None = None
    can: frozenset[str] | None = frozenset({"api", "gc"})
    clusters: tuple[str, ...] | None = None
    cached: str | None = None
    obtained: str | None = None

    def current_context(self) -> str:
        if self.context is None:
            raise Unavailable("current-context is not set")
        return self.context

    def capabilities(self, context: str) -> frozenset[str]:
        assert context == self.context
        if self.can is None:
            raise Unavailable("connection refused")
        return self.can

    def has_kind_cluster(self, name: str) -> bool:
        if self.clusters is None:
            raise Unavailable("kind does not work here")
        return name in self.clusters

    def kind(self) -> str:
        if self.clusters is None:
            raise Unavailable("kind does not work here")
        return "/kind"

    def programs(self, *, obtain: bool) -> str:
        directory = self.cached or (self.obtained if obtain else None)
        if directory is None:
            raise Unavailable("no programs")
        return directory


class Untouched:
    """Probes that fail the test if they are called."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")


EVERYTHING = Found(context="test", clusters=("kplane-e2e", "other"), cached="/bin")
NOTHING = Found()
ALLOWED = {"K8S_ALLOWED_CONTEXTS": "te*"}
EXISTING = {"USE_EXISTING_CLUSTER": "true", **ALLOWED}
IMAGE = {"KIND_NODE_IMAGE": "node:1"}
NO_NAMES = "auto: no cluster named by USE_EXISTING_CLUSTER"

ASKED_FOR = [
    ("none", {}, EVERYTHING, "none (--k8s=none)"),
    ("local", {}, EVERYTHING, "local (--k8s=local; programs found in /bin)"),
    ("local", {}, Found(obtained="/new"), "local (--k8s=local; programs found in /new)"),
    ("local", {"KIND_CLUSTER": "other", **EXISTING}, EVERYTHING, "local (--k8s=local; programs found in /bin)"),
    ("kind", {}, EVERYTHING, "kind (--k8s=kind; cluster kplane-e2e exists; kind found in /kind)"),
    ("kind", {"KIND_CLUSTER": "other"}, EVERYTHING, "kind (--k8s=kind; cluster other exists; kind found in /kind)"),
    ("kind", {}, Found(clusters=()), "kind (--k8s=kind; cluster kplane-e2e will be created; kind found in /kind)"),
    (
        "kind",
        IMAGE,
        Found(clusters=("a",)),
        "kind (--k8s=kind; cluster kplane-e2e will be created from node:1; kind found in /kind)",
    ),
    ("existing", ALLOWED, EVERYTHING, "existing (--k8s=existing; context test is allowed by te*; has api, gc)"),
]
NOT_THERE = [
    ("local", {}, NOTHING, "none (--k8s=local; no programs)"),
    ("kind", {}, Found(cached="/bin"), "none (--k8s=kind; kind does not work here)"),
    ("existing", ALLOWED, Found(cached="/bin"), "none (--k8s=existing; current-context is not set)"),
    ("existing", ALLOWED, Found(context="test", can=None), "none (--k8s=existing; connection refused)"),
]
NAMED_BY_THE_ENVIRONMENT = [
    (EXISTING, EVERYTHING, "existing (auto: USE_EXISTING_CLUSTER; context test is allowed by te*; has api, gc)"),
    (EXISTING, Found(context="test", can=None, cached="/bin"), "none (auto: USE_EXISTING_CLUSTER; connection refused)"),
    ({"KIND_CLUSTER": "other"}, EVERYTHING, f"kind ({NO_NAMES}; cluster other exists; kind found in /kind)"),
    (IMAGE, EVERYTHING, f"kind ({NO_NAMES}; cluster kplane-e2e exists; kind found in /kind)"),
    (
        IMAGE,
        Found(clusters=()),
        f"kind ({NO_NAMES}; cluster kplane-e2e will be created from node:1; kind found in /kind)",
    ),
    (
        {"KIND_CLUSTER": "gone"},
        EVERYTHING,
        f"local ({NO_NAMES}; KIND_CLUSTER=gone does not exist and KIND_NODE_IMAGE is not set; programs found in /bin)",
    ),
    (
        {"KIND_CLUSTER": "other", "USE_EXISTING_CLUSTER": "false"},
        Found(cached="/bin"),
        f"local ({NO_NAMES}; kind does not work here; programs found in /bin)",
    ),
]
NOTHING_NAMED = [
    ({}, EVERYTHING, f"local ({NO_NAMES}, no KIND_CLUSTER/KIND_NODE_IMAGE; programs found in /bin)"),
    ({}, Found(obtained="/new"), f"none ({NO_NAMES}, no KIND_CLUSTER/KIND_NODE_IMAGE; no programs)"),
]


@pytest.mark.parametrize(
    ("option", "environment", "machine", "summary"),
    [*ASKED_FOR, *NOT_THERE, *(("auto", *case) for case in (*NAMED_BY_THE_ENVIRONMENT, *NOTHING_NAMED))],
)
def test_choose_returns_backend_and_reason(
    option: str, environment: Mapping[str, str], machine: Found, summary: str
) -> None:
    assert choose(option, environment=environment, probes=machine).summary == summary


def test_choice_has_name_and_existence_of_cluster() -> None:
    def choice(option: str, machine: Found = EVERYTHING) -> tuple[str, bool]:
        result = choose(option, environment={"KIND_CLUSTER": "other", **ALLOWED}, probes=machine)
        return result.target, result.exists

    assert choice("existing") == ("test", True)
    assert choice("kind") == ("other", True)
    assert choice("kind", Found(clusters=())) == ("other", False)


def test_choice_has_capabilities_of_backend() -> None:
    def can(option: str, machine: Found = EVERYTHING) -> frozenset[str]:
        return choose(option, environment=ALLOWED, probes=machine).capabilities

    assert can("none") == frozenset()
    assert can("local") == {"api", "gc", "reset"}
    assert can("kind") == {"api", "gc", "pods", "images"} == set(CAPABILITIES) - {"reset"}
    assert can("existing", Found(context="test", can=frozenset({"api", "pods"}))) == {"api", "pods"}


def test_choice_of_none_calls_no_probe() -> None:
    assert choose("none", environment={"USE_EXISTING_CLUSTER": "true"}, probes=Untouched()).backend == "none"


@pytest.mark.parametrize("option", ["auto", "existing"])
@pytest.mark.parametrize(
    ("allowed", "says"),
    [({}, "is not set"), ({"K8S_ALLOWED_CONTEXTS": " , "}, "is not set"), (ALLOWED, "allows te")],
)
def test_disallowed_context_is_refused_without_further_probes(
    option: str, allowed: Mapping[str, str], says: str
) -> None:
    class Production(Untouched):
        def current_context(self) -> str:
            return "production"

    with pytest.raises(Misconfigured, match=f"current context production: K8S_ALLOWED_CONTEXTS {says}") as error_info:
        choose(option, environment={"USE_EXISTING_CLUSTER": "true", **allowed}, probes=Production())
    assert "set K8S_ALLOWED_CONTEXTS=production" in str(error_info.value)


@pytest.mark.parametrize("allowed", ["test", "kind-*, test", "*", " te?t"])
def test_context_matching_a_pattern_is_allowed(allowed: str) -> None:
    environment = {"K8S_ALLOWED_CONTEXTS": allowed}
    assert choose("existing", environment=environment, probes=EVERYTHING).backend == "existing"


@pytest.mark.parametrize("allowed", ["Test", "tes", "est", "kind-*"])
def test_context_matching_no_pattern_is_refused(allowed: str) -> None:
    with pytest.raises(Misconfigured):
        choose("existing", environment={"K8S_ALLOWED_CONTEXTS": allowed}, probes=EVERYTHING)


@pytest.mark.parametrize(("option", "name"), [("auto", "USE_EXISTING_CLUSTER"), ("kind", "KIND_KEEP")])
def test_invalid_boolean_variable_is_refused_by_name(option: str, name: str) -> None:
    with pytest.raises(Misconfigured, match=f"failed to read {name}=maybe: expected true or false"):
        choose(option, environment={name: "maybe"}, probes=EVERYTHING)


@pytest.mark.parametrize(
    ("value", "meaning"), [("true", True), ("1", True), ("Yes", True), ("FALSE", False), ("0", False), ("", False)]
)
def test_is_true_reads_boolean_values_of_variables(value: str, meaning: bool) -> None:
    assert is_true("X", environment={"X": value}) is meaning
    assert is_true("Y", environment={"X": value}) is False


def test_choice_survives_dump_and_load() -> None:
    choice = Choice(backend="kind", reason="why", capabilities=frozenset({"api", "gc"}), target="c", exists=False)
    assert Choice.load(choice.dump()) == choice
