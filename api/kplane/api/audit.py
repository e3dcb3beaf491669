"""What an API server writes to its audit log: the policy of audit.k8s.io/v1."""

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
    """How much is written of a request."""

    NONE = "None"
    METADATA = "Metadata"
    REQUEST = "Request"
    REQUEST_RESPONSE = "RequestResponse"


class AuditStage(StrEnum):
    """When something is written of a request."""

    REQUEST_RECEIVED = "RequestReceived"
    RESPONSE_STARTED = "ResponseStarted"
    RESPONSE_COMPLETE = "ResponseComplete"
    PANIC = "Panic"


_Stages = Annotated[list[AuditStage], Field(max_length=4), ATOMIC_LIST]


class AuditResources(ApiModel):
    """Resources of one API group."""

    group: Annotated[str, StringConstraints(max_length=253)] = ""
    """The API group; empty for the core group."""
    resources: _Names = Field(default_factory=list)
    """Their names, such as secrets or pods/log; empty for all of the group."""
    resource_names: _Names = Field(default_factory=list)
    """Names of objects; empty for all."""


_ONE_SORT: Final = (
    "a rule of spec.apiServer.auditPolicy is for resources and namespaces, or for nonResourceURLs: make two rules of it"
)


class AuditRule(ApiModel):
    """How much is written of some requests. A list that is empty means: of any."""

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
    """None, Metadata (who did what, when), Request (and what was sent) or RequestResponse (and what was answered).
    Secrets at level Request are in the log in plain text.
    """
    users: _Names = Field(default_factory=list)
    """Users who ask."""
    user_groups: _Names = Field(default_factory=list)
    """Groups of which they are in one."""
    verbs: _Names = Field(default_factory=list)
    """What they ask for, such as get or delete."""
    resources: Annotated[list[AuditResources], Field(max_length=64), ATOMIC_LIST] = Field(default_factory=list)
    """What they ask it of."""
    namespaces: _Names = Field(default_factory=list)
    """Where that is."""
    non_resource_urls: _Names = Field(default_factory=list, alias="nonResourceURLs")
    """Paths that are of no resource, such as /healthz or /metrics*."""
    omit_stages: _Stages = Field(default_factory=list)
    """Stages of which nothing is written."""
    omit_managed_fields: bool | None = None
    """Whether `metadata.managedFields` are left out; absent for what the policy says."""

    @model_validator(mode="after")
    def _is_of_one_sort(self) -> Self:
        if self.non_resource_urls and (self.resources or self.namespaces):
            raise ValueError(_ONE_SORT)
        return self


class AuditPolicy(ApiModel):
    """What is written: for each request the first rule that fits it counts."""

    rules: Annotated[list[AuditRule], Field(min_length=1, max_length=64), ATOMIC_LIST]
    """The rules, in their order."""
    omit_stages: _Stages = Field(default_factory=list)
    """Stages of which nothing is written, whatever the rule."""
    omit_managed_fields: bool = False
    """Whether `metadata.managedFields` are left out."""
