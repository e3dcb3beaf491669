"""Errors that explain why an object is not ready: a reason for programs and a message for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kplane.api.names import DELETE_ADMISSION_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.errors import OperatorError
from kplane.provider import ApiError, ProviderError, Unreachable
from kplane.provider.client.admission import Guard, name_guards, refusing_guard
from kplane.provider.errors import Forbidden, Unauthorized

__all__ = ["ConditionError", "management_refusal", "start_reason", "tenant_error"]

_BY_WORD: Final = {str(reason): reason for reason in Reason}


class ConditionError(OperatorError):
    """Error that keeps an object from being ready. It becomes `reason` and `message` of a condition."""

    def __init__(
        self, reason: Reason, message: str, *, waits_for_event: bool | None = None, guards: Sequence[Guard] = ()
    ) -> None:
        """`waits_for_event` overrides the default of the reason.

        If it is True, the reconciler waits for an event and does not retry. `guards` are the webhooks and policies
        of a tenant that caused the failure, or may have caused it.
        """
        super().__init__(message)
        self.reason: Final = reason
        self.message: Final = message
        self.waits_for_event: Final = reason.waits_for_event if waits_for_event is None else waits_for_event
        self.guards: Final = tuple(guards)


def start_reason(reason: Reason, *, published: bool) -> Reason:
    """Return the reason why no API server serves: APIServerNotReady if published before, otherwise `reason`."""
    return Reason.API_SERVER_NOT_READY if published else reason


def tenant_error(what: str, error: ProviderError, *, guards: Sequence[Guard] = ()) -> ConditionError:
    """Return a ConditionError for an error of a tenant's API server. `what` names the address or the action.

    `guards` are the webhooks and policies that may have caused the error, if the caller has searched the control plane
    for them (`tenant/admission.py`). The cause is proven only if the error names a guard. A write that timed out may
    have waited for a guard, or for an etcd that stalled, and such a failure ends without human action.
    """
    guard = refusing_guard(error)
    if guard is not None:
        guards_in_message = [*guards] or [guard]
        return ConditionError(
            Reason.WEBHOOK_REFUSED, f"{what}: {_remedy(guards_in_message)}; {error}", guards=guards_in_message
        )
    if guards:
        message = f"{what}: a write had no answer in time; if that lasts, {_remedy(guards)}; {error}"
        return ConditionError(Reason.ENDPOINT_UNREACHABLE, message, guards=guards)
    match error:
        case Unreachable():
            reason = _BY_WORD[error.reason]
        case Unauthorized() | Forbidden():
            reason = Reason.CREDENTIALS_REJECTED
        case ApiError():
            reason = Reason.BOOTSTRAP_FAILED
        case _:
            reason = Reason.FAILED
    return ConditionError(reason, f"{what}: {error}")


def _remedy(guards: Sequence[Guard]) -> str:
    """Return the remedy for webhooks and policies that refuse or delay writes of kplane."""
    remedy = (
        f"mend or delete {name_guards(guards)}, or exclude namespace kplane-system and the group"
        " rbac.authorization.k8s.io from the rules"
    )
    target = next((guard for guard in guards if guard.deletion), None)
    if target is None:
        return remedy
    annotation = f"{DELETE_ADMISSION_ANNOTATION}={target.kind}/{target.configuration}"
    return (
        f"{remedy}; no webhook can refuse `{target.deletion}`, and annotation {annotation} of the control plane has the"
        " operator delete it"
    )


def management_refusal(error: ProviderError) -> ConditionError:
    """Return a ConditionError for a refusal of the management cluster, such as by a quota or an admission policy."""
    return ConditionError(Reason.MANAGEMENT_CLUSTER_REFUSED, f"the management cluster refused a write: {error}")
