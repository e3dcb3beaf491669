"""The Service of the API server of a control plane."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from kplane.api.resource import ApiModel

__all__ = ["ServiceSettings"]


class ServiceSettings(ApiModel):
    """Settings of the Service for a cloud or a load balancer."""

    annotations: Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Annotations of the Service."""
    load_balancer_class: Annotated[str, StringConstraints(min_length=1, max_length=316)] | None = None
    """The load balancer implementation of the Service, if the operator exposes API servers by load balancers. It is set
    when the Service is created, because Kubernetes does not allow a change.
    """
