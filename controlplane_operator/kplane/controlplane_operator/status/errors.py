"""Why an object is not what it should be: a reason for programs and a sentence for people."""

from __future__ import annotations

from typing import Final

from kplane.controlplane_operator.errors import OperatorError
from kplane.provider import ApiError, ProviderError, Unreachable
from kplane.provider.errors import Forbidden, Unauthorized

__all__ = ["MANAGEMENT_CLUSTER_REFUSED", "Trouble", "refusal", "trouble_with"]

MANAGEMENT_CLUSTER_REFUSED: Final = "ManagementClusterRefused"


class Trouble(OperatorError):
    """Something keeps an object from being ready; it ends up as `reason` and `message` of its condition.

    `waits_for_event` says that nothing but a change of some watched object can help, so that no try by time is needed.
    """

    def __init__(self, reason: str, message: str, *, waits_for_event: bool = False) -> None:
        super().__init__(message)
        self.reason: Final = reason
        self.message: Final = message
        self.waits_for_event: Final = waits_for_event


def trouble_with(what: str, error: ProviderError) -> Trouble:
    """Say what an error of a tenant's API server means for the control plane; `what` names the address or the act."""
    match error:
        case Unreachable():
            reason = error.reason
        case Unauthorized() | Forbidden():
            reason = "CredentialsRejected"
        case ApiError():
            reason = "Bootstrapping"
        case _:
            reason = "Failed"
    return Trouble(reason, f"{what}: {error}")


def refusal(error: ProviderError) -> Trouble:
    """Say that the management cluster does not let us do what is needed, by a quota or somebody's admission policy."""
    return Trouble(MANAGEMENT_CLUSTER_REFUSED, f"the management cluster refuses what is needed: {error}")
