"""The Service under which the API server of a control plane is reached."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from kplane.api.resource import ApiModel

__all__ = ["ServiceSettings"]


class ServiceSettings(ApiModel):
    """What a cloud or a load balancer wants to be told of that Service."""

    annotations: Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Annotations of the Service."""
    load_balancer_class: Annotated[str, StringConstraints(min_length=1, max_length=316)] | None = None
    """The implementation of load balancers that serves it, where the operator exposes API servers by load balancers.
    It counts when the Service is made: Kubernetes does not allow a change.
    """
