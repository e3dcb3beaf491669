"""Exceptions of the gateway."""

from __future__ import annotations

__all__ = ["CertificateInvalid", "ConfigurationRejected", "Declined", "GatewayError", "RouteInvalid"]


class GatewayError(Exception):
    """Base class of all exceptions of the gateway."""


class CertificateInvalid(GatewayError):
    """The serving certificate is missing, unreadable or does not match its key.

    The former certificate stays in force.
    """


class RouteInvalid(GatewayError):
    """The objects of a control plane yield no valid route. Routes of other control planes are unaffected."""


class ConfigurationRejected(GatewayError):
    """Envoy rejects a configuration. The former configuration stays in force."""


class Declined(GatewayError):
    """The gateway refuses a request. The message is for the client."""

    def __init__(self, code: int, message: str, *, is_retried: bool = True) -> None:
        """Create the error.

        `code` is the HTTP status code that an API server would send. `is_retried` is True if a later request may
        succeed. Then a response with 429 or 503 has `Retry-After`: clients repeat the request by themselves, and show
        no message meanwhile.
        """
        super().__init__(message)
        self.code = code
        self.is_retried = is_retried
