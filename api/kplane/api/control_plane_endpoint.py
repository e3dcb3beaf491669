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
    """Addresses of a control plane, and credentials for an API server that kplane does not run."""

    endpoint: Annotated[HttpsUrl, url_rules("spec.endpoint")] | None = None
    """The https URL for clients in the management cluster."""
    external_endpoint: Annotated[HttpsUrl, url_rules("spec.externalEndpoint")] | None = None
    """The https URL for clients outside of the management cluster."""
    join_endpoint: Annotated[HttpsUrl, url_rules("spec.joinEndpoint")] | None = None
    """The https URL for nodes that join."""
    credentials_secret_ref: SecretReference | None = None
    """The Secret whose key `kubeconfig` has the credentials with which kplane sets up an existing API server. They must
    be credentials of an administrator. kplane does not hand them on. The owner of the Secret consents by the label
    `controlplane.kplane.dev/allow-endpoint: "true"`.
    """


class ControlPlaneEndpointStatus(ApiModel):
    """Addresses in force: the addresses of the spec, unless another controller writes addresses into the status.

    Ready is True if the endpoint is valid, Reachable is True if its API server responds.
    """

    endpoint: _PublishedUrl | None = None
    """The URL for clients in the management cluster."""
    external_endpoint: _PublishedUrl | None = None
    """The URL for clients outside of the management cluster."""
    join_endpoint: _PublishedUrl | None = None
    """The URL for nodes that join."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that was observed last."""
    conditions: Conditions = Field(default_factory=list)
    """The detailed state; Ready summarizes it."""


class ControlPlaneEndpoint(ResourceModel):
    """The addresses of the API server of a control plane."""

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
    """Addresses of the control plane, and credentials for an API server that kplane does not run."""
    status: ControlPlaneEndpointStatus = Field(default_factory=ControlPlaneEndpointStatus)
    """Addresses in force; written by the controller that provides the endpoint."""
