"""Why an object is not what it should be: a reason for programs and a message for people."""

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
    """Keeps an object from being ready; it becomes `reason` and `message` of a condition."""

    def __init__(
        self, reason: Reason, message: str, *, waits_for_event: bool | None = None, guards: Sequence[Guard] = ()
    ) -> None:
        """`waits_for_event` says what the reason says, unless this case is another one.

        `guards` are the webhooks and policies of a tenant that caused the failure, or may have caused it.
        """
        super().__init__(message)
        self.reason: Final = reason
        self.message: Final = message
        self.waits_for_event: Final = reason.waits_for_event if waits_for_event is None else waits_for_event
        self.guards: Final = tuple(guards)


def start_reason(reason: Reason, *, published: bool) -> Reason:
    """Return why there is no API server that serves: APIServerNotReady once published, and `reason` before."""
    return Reason.API_SERVER_NOT_READY if published else reason


def tenant_error(what: str, error: ProviderError, *, guards: Sequence[Guard] = ()) -> ConditionError:
    """Return what an error of a tenant's API server means; `what` names the address or the act.

    `guards` are the webhooks and policies that may have caused it, if somebody has looked for them in the control plane
    (`tenant/admission.py`). Only an error that names one proves that. A write that ran out of time may have waited for
    them, or for an etcd that stalled: such a failure passes without a person.
    """
    named = refusing_guard(error)
    if named is not None:
        blamed = [*guards] or [named]
        return ConditionError(Reason.WEBHOOK_REFUSED, f"{what}: {_remedy(blamed)}; {error}", guards=blamed)
    if guards:
        said = f"{what}: a write had no answer in time; if that lasts, {_remedy(guards)}; {error}"
        return ConditionError(Reason.ENDPOINT_UNREACHABLE, said, guards=guards)
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
    """Say what to do about webhooks and policies that refuse writes of kplane, or hold them up."""
    remedy = (
        f"mend or delete {name_guards(guards)}, or exclude namespace kplane-system and the group"
        " rbac.authorization.k8s.io from the rules"
    )
    known = next((guard for guard in guards if guard.deletion), None)
    if known is None:
        return remedy
    annotation = f"{DELETE_ADMISSION_ANNOTATION}={known.kind}/{known.configuration}"
    return (
        f"{remedy}; no webhook can refuse `{known.deletion}`, and annotation {annotation} of the control plane has the"
        " operator delete it"
    )


def management_refusal(error: ProviderError) -> ConditionError:
    """Return what a refusal of the management cluster means, such as a quota's or an admission policy's."""
    return ConditionError(Reason.MANAGEMENT_CLUSTER_REFUSED, f"the management cluster refused a write: {error}")
