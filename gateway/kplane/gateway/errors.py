"""What goes wrong in the gateway."""

from __future__ import annotations

__all__ = ["CertificateInvalid", "ConfigurationRejected", "Declined", "GatewayError", "RouteInvalid"]


class GatewayError(Exception):
    """The base of all errors of the gateway."""


class CertificateInvalid(GatewayError):
    """The serving certificate cannot be used. The one before stays in force."""


class RouteInvalid(GatewayError):
    """A route cannot be made of what is known of a control plane. It keeps no other route back."""


class ConfigurationRejected(GatewayError):
    """Envoy refuses a configuration. The one before stays in force."""


class Declined(GatewayError):
    """A request is not passed on. The message is for its client."""

    def __init__(self, code: int, message: str, *, is_retried: bool = True) -> None:
        """`code` is of HTTP, as an API server would answer. `is_retried`: a later request may get another answer.

        Clients repeat a request by themselves if the answer says so, and tell their users nothing meanwhile.
        """
        super().__init__(message)
        self.code = code
        self.is_retried = is_retried
