"""The audit policy of an API server, as in audit.k8s.io/v1."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from kplane.api.extensions import ATOMIC_LIST, Rule, rules
from kplane.api.resource import ApiModel

__all__ = ["AuditLevel", "AuditPolicy", "AuditResources", "AuditRule", "AuditStage"]

_Names = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=253)]], Field(max_length=64), ATOMIC_LIST
]


class AuditLevel(StrEnum):
    """Amount of data that is recorded about a request."""

    NONE = "None"
    METADATA = "Metadata"
    REQUEST = "Request"
    REQUEST_RESPONSE = "RequestResponse"


class AuditStage(StrEnum):
    """Stage of a request at which an audit event is generated."""

    REQUEST_RECEIVED = "RequestReceived"
    RESPONSE_STARTED = "ResponseStarted"
    RESPONSE_COMPLETE = "ResponseComplete"
    PANIC = "Panic"


_Stages = Annotated[list[AuditStage], Field(max_length=4), ATOMIC_LIST]


class AuditResources(ApiModel):
    """Resources of an API group."""

    group: Annotated[str, StringConstraints(max_length=253)] = ""
    """The API group; empty for the core group."""
    resources: _Names = Field(default_factory=list)
    """Names of resources, such as secrets or pods/log; empty for all resources of the group."""
    resource_names: _Names = Field(default_factory=list)
    """Names of objects; empty for all objects."""


_ONE_SORT: Final = (
    "a rule of spec.apiServer.auditPolicy is for resources and namespaces, or for nonResourceURLs: make two rules of it"
)


class AuditRule(ApiModel):
    """Audit level for a set of requests. An empty list matches every request."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                rule=(
                    "!has(self.nonResourceURLs) || size(self.nonResourceURLs) == 0"
                    " || ((!has(self.resources) || size(self.resources) == 0)"
                    " && (!has(self.namespaces) || size(self.namespaces) == 0))"
                ),
                message=_ONE_SORT,
            )
        )
    )

    level: AuditLevel
    """None, Metadata (user, time, verb and object), Request (also the request body) or RequestResponse (also the
    response body). At level Request or higher, Secrets are in the log in plain text.
    """
    users: _Names = Field(default_factory=list)
    """Users whose requests match."""
    user_groups: _Names = Field(default_factory=list)
    """Groups whose members' requests match."""
    verbs: _Names = Field(default_factory=list)
    """Verbs that match, such as get or delete."""
    resources: Annotated[list[AuditResources], Field(max_length=64), ATOMIC_LIST] = Field(default_factory=list)
    """Resources that match."""
    namespaces: _Names = Field(default_factory=list)
    """Namespaces whose objects match."""
    non_resource_urls: _Names = Field(default_factory=list, alias="nonResourceURLs")
    """Paths outside of resources that match, such as /healthz or /metrics*."""
    omit_stages: _Stages = Field(default_factory=list)
    """Stages for which no audit event is generated."""
    omit_managed_fields: bool | None = None
    """Whether `metadata.managedFields` are omitted; absent for the setting of the policy."""

    @model_validator(mode="after")
    def _is_of_one_sort(self) -> Self:
        if self.non_resource_urls and (self.resources or self.namespaces):
            raise ValueError(_ONE_SORT)
        return self


class AuditPolicy(ApiModel):
    """Audit policy: the first rule that matches a request sets its audit level."""

    rules: Annotated[list[AuditRule], Field(min_length=1, max_length=64), ATOMIC_LIST]
    """The rules, in order of precedence."""
    omit_stages: _Stages = Field(default_factory=list)
    """Stages for which no audit event is generated, for every rule."""
    omit_managed_fields: bool = False
    """Whether `metadata.managedFields` are omitted."""
