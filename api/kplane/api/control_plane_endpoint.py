"""ControlPlaneEndpoint: the addresses of a control plane."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from kplane.api.conditions import Conditions
from kplane.api.references import HttpsUrl, SecretReference, url_rules
from kplane.api.resource import ApiModel, Column, ResourceInfo, ResourceModel

__all__ = ["ControlPlaneEndpoint", "ControlPlaneEndpointSpec", "ControlPlaneEndpointStatus"]

_PublishedUrl = Annotated[str, StringConstraints(max_length=2048)]


class ControlPlaneEndpointSpec(ApiModel):
    """The addresses of a control plane, and how kplane gets in where it does not run the API server itself."""

    endpoint: Annotated[HttpsUrl, url_rules("spec.endpoint")] | None = None
    """The https URL for clients in the management cluster."""
    external_endpoint: Annotated[HttpsUrl, url_rules("spec.externalEndpoint")] | None = None
    """The https URL for people and programs elsewhere."""
    join_endpoint: Annotated[HttpsUrl, url_rules("spec.joinEndpoint")] | None = None
    """The https URL for nodes that join."""
    credentials_secret_ref: SecretReference | None = None
    """The Secret whose key `kubeconfig` holds the credentials that kplane sets an existing API server up with. They
    need to be an administrator's, and are not handed on. The Secret has to carry the label
    `controlplane.kplane.dev/allow-endpoint: "true"`, by which its owner agrees.
    """


class ControlPlaneEndpointStatus(ApiModel):
    """The addresses in force: those of the spec, unless another controller writes others here.

    Ready says whether the endpoint can be used as it is written, Reachable whether its API server answers.
    """

    endpoint: _PublishedUrl | None = None
    """The URL for clients in the management cluster."""
    external_endpoint: _PublishedUrl | None = None
    """The URL for people and programs elsewhere."""
    join_endpoint: _PublishedUrl | None = None
    """The URL for nodes that join."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that this status answers."""
    conditions: Conditions = Field(default_factory=list)
    """The state in detail; Ready sums it up."""


class ControlPlaneEndpoint(ResourceModel):
    """The addresses under which the API server of a control plane is reached."""

    resource: ClassVar[ResourceInfo] = ResourceInfo(
        kind="ControlPlaneEndpoint",
        plural="controlplaneendpoints",
        short_names=("cpe",),
        columns=(
            Column("Endpoint", "string", ".status.endpoint", priority=1),
            Column("External", "string", ".status.externalEndpoint", priority=1),
            Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Reachable", "string", '.status.conditions[?(@.type=="Reachable")].status'),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
    )

    spec: ControlPlaneEndpointSpec
    """The addresses, and how kplane gets in."""
    status: ControlPlaneEndpointStatus = Field(default_factory=ControlPlaneEndpointStatus)
    """The addresses in force; written by the controller that provides the endpoint."""
