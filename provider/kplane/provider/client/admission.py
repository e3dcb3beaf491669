"""Admission webhooks and policies of a cluster that refuse or delay a write.

An API server names the webhook that failed, but not its configuration object. It never names a webhook with
`failurePolicy: Ignore`, although the write waits for its `timeoutSeconds`, up to 30 s. An API server gives up a write
after 34 s (`requestTimeoutUpperBound` of k8s.io/apiserver/pkg/endpoints/handlers). So this module reads the webhooks
that judge a slow write from the cluster.

An API server calls no webhook for a read, or for a write of the configuration objects themselves
(`IsExemptAdmissionConfigurationResource` of k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules). So an
administrator can always delete them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from kplane.provider.client.client import Client, Object
from kplane.provider.client.resources import (
    DNS_SUBDOMAIN,
    MUTATING_ADMISSION_POLICIES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from kplane.provider.errors import ApiError, NotFound, ProviderError, Unreachable

__all__ = ["CONFIGURATIONS", "Guard", "Write", "blamed_guards", "guards_of", "name_guards", "refusing_guard"]

CONFIGURATIONS: Final = (
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_ADMISSION_POLICIES,
    MUTATING_ADMISSION_POLICIES,
)
"""Kinds of the configuration objects. API servers call no webhook and no policy for writes of these kinds."""
_WEBHOOKS: Final = CONFIGURATIONS[:2]
_WEBHOOK: Final = re.compile(r"(?:failed calling webhook|admission webhook) \"(?P<name>[-.a-zA-Z0-9]{1,253})\"")
"""Matches messages of API servers: ErrCallingWebhook and ToStatusErr of k8s.io/apiserver."""
_POLICY: Final = re.compile(
    r"\b(?P<word>ValidatingAdmissionPolicy|policy) (?P<quote>['\"])(?P<name>[-.a-z0-9]{1,253})(?P=quote)"
    r"(?: with binding '[-.a-z0-9]{1,253}')? denied request"
)
"""Matches messages of validating/dispatcher.go in k8s.io/apiserver/pkg/admission/plugin/policy. Messages about a
MutatingAdmissionPolicy come from PolicyError in generic/policy_dispatcher.go, which leaves out the kind.
"""
_GATEWAY_TIMEOUT: Final = 504
_DEFAULT_TIMEOUT_SECONDS: Final = 10
_LOOKUP_SECONDS: Final = 5.0
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """An admission webhook or policy, with its configuration object."""

    kind: str = ""
    """Kind of the configuration object; empty if unknown."""
    configuration: str = ""
    """Name of the configuration object; empty if unknown."""
    webhook: str = ""
    """Name of the webhook in the configuration; empty for a policy."""
    failure_policy: str = ""
    """Fail or Ignore; empty if unknown."""
    timeout_seconds: int | None = None
    """Time that an API server waits for the webhook; None if unknown."""

    @override
    def __str__(self) -> str:
        place = f"{self.kind} {self.configuration}" if self.configuration else ""
        webhook = f"webhook {self.webhook!r}" if self.webhook else ""
        facts = [self.failure_policy, f"{self.timeout_seconds} s" if self.timeout_seconds is not None else ""]
        details = ", ".join(filter(None, facts))
        return " of ".join(filter(None, (webhook, place))) + (f" ({details})" if details else "")

    @property
    def deletion(self) -> str:
        """The command that deletes the configuration object; empty if the object is unknown."""
        return f"kubectl delete {self.kind.lower()} {self.configuration}" if self.configuration else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A kind of write that webhooks may judge: creations and updates of objects of one kind."""

    resource: Resource
    namespace: str | None = None
    """None for a cluster-scoped kind."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the written object."""
    operations: frozenset[str] = frozenset({"CREATE", "UPDATE"})


def refusing_guard(error: ProviderError) -> Guard | None:
    """Return the webhook or policy that an error names because it refused the write or did not answer, else None.

    The error does not name the configuration object; see `blamed_guards`.
    """
    if not isinstance(error, ApiError):
        return None
    if (webhook := _WEBHOOK.search(error.message)) is not None:
        return Guard(webhook=webhook["name"])
    if (policy := _POLICY.search(error.message)) is not None:
        is_validating = policy["word"] == VALIDATING_ADMISSION_POLICIES.kind
        resource = VALIDATING_ADMISSION_POLICIES if is_validating else MUTATING_ADMISSION_POLICIES
        return Guard(kind=resource.kind, configuration=policy["name"])
    return None


async def blamed_guards(
    client: Client, error: ProviderError, *writes: Write, seconds: float = _LOOKUP_SECONDS
) -> list[Guard]:
    """Return the webhooks and policies that may have caused an error of one of the `writes`, or an empty list.

    If the error names a webhook or policy, the result has it with its configuration object. If the write was sent and
    timed out, the result has all webhooks that judge such a write, and any of them may be slow. A read or a failed
    connection waits for no webhook. The function raises no error: if the cluster does not answer within `seconds`, the
    result is limited to the names in the error.
    """
    named = refusing_guard(error)
    if named is None and not (writes and _ran_out_of_time(error)):
        return []
    if named is not None and not named.webhook:
        return [named]
    try:
        async with asyncio.timeout(seconds):
            if named is None:
                return await guards_of(client, *writes)
            return [guard async for guard, _ in _webhooks(client) if guard.webhook == named.webhook] or [named]
    except (ProviderError, TimeoutError):
        return [named] if named is not None else []


async def guards_of(client: Client, *writes: Write) -> list[Guard]:
    """Return the webhooks that judge at least one of the `writes`; raises what `Client.list` raises.

    `matchConditions` are not evaluated, and versions of a resource count as equivalent. So the result may contain a
    webhook that the API server does not call for the write.
    """
    guards, namespaces = list[Guard](), dict[str, Mapping[str, str]]()
    async for guard, webhook in _webhooks(client):
        for write in writes:
            if not any(_is_ruled(rule, write) for rule in _mappings(webhook.get("rules"))):
                continue
            if not _selects(webhook.get("objectSelector"), write.labels):
                continue
            selector, namespace = webhook.get("namespaceSelector"), write.namespace
            if namespace is not None and selector:
                if namespace not in namespaces:
                    namespaces[namespace] = await _labels_of(client, namespace)
                if not _selects(selector, namespaces[namespace]):
                    continue
            guards.append(guard)
            break
    return guards


def name_guards(guards: Sequence[Guard]) -> str:
    """Name the first webhooks and policies for a sentence, with the number of further ones."""
    more = f" and {len(guards) - _MAX_NAMED} more" if len(guards) > _MAX_NAMED else ""
    return ", ".join(map(str, guards[:_MAX_NAMED])) + more


def _ran_out_of_time(error: ProviderError) -> bool:
    if isinstance(error, Unreachable):
        return error.timed_out and error.write_sent
    return isinstance(error, ApiError) and error.status == _GATEWAY_TIMEOUT


async def _webhooks(client: Client) -> AsyncIterator[tuple[Guard, Object]]:
    """Yield the webhooks of a cluster, each with its description. Raises what `Client.list` raises."""
    for resource in _WEBHOOKS:
        for configuration in (await client.list(resource)).items:
            name = configuration["metadata"].get("name", "")
            # The API server may be hostile, and this name becomes part of a shell command.
            if not DNS_SUBDOMAIN.fullmatch(name):
                continue
            for webhook in _mappings(configuration.get("webhooks")):
                title, seconds = webhook.get("name"), webhook.get("timeoutSeconds", _DEFAULT_TIMEOUT_SECONDS)
                policy = webhook.get("failurePolicy", "Fail")
                if not isinstance(title, str) or not DNS_SUBDOMAIN.fullmatch(title):
                    continue
                guard = Guard(
                    kind=resource.kind,
                    configuration=name,
                    webhook=title,
                    failure_policy=policy if policy in {"Fail", "Ignore"} else "",
                    timeout_seconds=seconds if isinstance(seconds, int) else None,
                )
                yield guard, webhook


def _is_ruled(rule: Mapping[str, Any], write: Write) -> bool:
    """Tell whether a rule names the write, as `Matcher` of k8s.io/apiserver's predicates/rules does.

    Versions are left out: by the default `matchPolicy: Equivalent`, a rule for one version counts for all.
    """
    scope = rule.get("scope", "*")
    resource, group = write.resource, write.resource.api_version.rpartition("/")[0]
    return (
        scope in {"*", "Namespaced" if write.namespace is not None else "Cluster"}
        and not {"*", *write.operations}.isdisjoint(_strings(rule.get("operations")))
        and not {"*", group}.isdisjoint(_strings(rule.get("apiGroups")))
        and not {"*", "*/*", resource.plural, f"{resource.plural}/*"}.isdisjoint(_strings(rule.get("resources")))
    )


def _selects(selector: object, labels: Mapping[str, str]) -> bool:
    """Tell whether a LabelSelector matches labels. An invalid selector matches all labels."""
    if not isinstance(selector, Mapping):
        return True
    wanted = selector.get("matchLabels")
    if isinstance(wanted, Mapping) and any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_meets(requirement, labels) for requirement in _mappings(selector.get("matchExpressions")))


def _meets(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = requirement.get("key"), _strings(requirement.get("values"))
    value = labels.get(key) if isinstance(key, str) else None
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return True


async def _labels_of(client: Client, namespace: str) -> Mapping[str, str]:
    """Return the labels of a namespace; before it exists, only the label with its name."""
    try:
        labels = (await client.get(NAMESPACES, namespace))["metadata"].get("labels")
    except NotFound:
        labels = None
    return labels if isinstance(labels, Mapping) else {_NAME_LABEL: namespace}


def _mappings(value: object) -> Iterator[Object]:
    yield from (item for item in (value if isinstance(value, list) else ()) if isinstance(item, dict))


def _strings(value: object) -> set[str]:
    items: Iterable[object] = value if isinstance(value, list) else ()
    return {item for item in items if isinstance(item, str)}
