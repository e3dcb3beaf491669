"""Why an object is not what it should be: a reason for programs and a message for people."""

from __future__ import annotations

import re
from typing import Final

from kplane.controlplane_operator.errors import OperatorError
from kplane.controlplane_operator.reasons import Reason
from kplane.provider import ApiError, ProviderError, Unreachable
from kplane.provider.errors import Forbidden, Unauthorized

__all__ = ["ConditionError", "management_refusal", "start_reason", "tenant_error"]

_WEBHOOK: Final = re.compile(r"(?:failed calling webhook|admission webhook) \"(?P<name>[-.a-zA-Z0-9]{1,253})\"")
"""In messages of API servers, see ErrCallingWebhook and ToStatusErr of k8s.io/apiserver."""
_BY_WORD: Final = {str(reason): reason for reason in Reason}


class ConditionError(OperatorError):
    """Keeps an object from being ready; it becomes `reason` and `message` of a condition."""

    def __init__(self, reason: Reason, message: str, *, waits_for_event: bool | None = None) -> None:
        """`waits_for_event` says what the reason says, unless this case is another one."""
        super().__init__(message)
        self.reason: Final = reason
        self.message: Final = message
        self.waits_for_event: Final = reason.waits_for_event if waits_for_event is None else waits_for_event


def start_reason(reason: Reason, *, published: bool) -> Reason:
    """Return why there is no API server that serves: APIServerNotReady once published, and `reason` before."""
    return Reason.API_SERVER_NOT_READY if published else reason


def tenant_error(what: str, error: ProviderError) -> ConditionError:
    """Return what an error of a tenant's API server means; `what` names the address or the act."""
    match error:
        case ApiError() if (webhook := _webhook_of(error)) is not None:
            remedy = (
                f"mend or delete webhook {webhook!r} of the control plane, or exclude namespace kplane-system and the"
                " group rbac.authorization.k8s.io from its rules"
            )
            return ConditionError(Reason.WEBHOOK_REFUSED, f"{what}: {error}; {remedy}")
        case Unreachable():
            reason = _BY_WORD[error.reason]
        case Unauthorized() | Forbidden():
            reason = Reason.CREDENTIALS_REJECTED
        case ApiError():
            reason = Reason.BOOTSTRAP_FAILED
        case _:
            reason = Reason.FAILED
    return ConditionError(reason, f"{what}: {error}")


def _webhook_of(error: ApiError) -> str | None:
    """Return the name of the admission webhook that refused the request, or did not answer; None if none did."""
    found = _WEBHOOK.search(str(error))
    return found["name"] if found is not None else None


def management_refusal(error: ProviderError) -> ConditionError:
    """Return what a refusal of the management cluster means, such as a quota's or an admission policy's."""
    return ConditionError(Reason.MANAGEMENT_CLUSTER_REFUSED, f"the management cluster refused a write: {error}")
