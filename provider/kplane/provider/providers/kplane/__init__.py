"""Providers of kplane: clusters of registrations and of endpoints."""

from __future__ import annotations

from kplane.provider.providers.kplane.endpoint import ENDPOINTS, EndpointProvider, SecretTemplate, address_of
from kplane.provider.providers.kplane.registration import (
    CONTROLLERS_ATTRIBUTE,
    PROFILE_ATTRIBUTE,
    REGISTRATIONS,
    SERVICES_ATTRIBUTE,
    UID_ATTRIBUTE,
    VERSION_ATTRIBUTE,
    RegistrationProvider,
    is_occupied,
    is_served,
)

__all__ = [
    "CONTROLLERS_ATTRIBUTE",
    "ENDPOINTS",
    "PROFILE_ATTRIBUTE",
    "REGISTRATIONS",
    "SERVICES_ATTRIBUTE",
    "UID_ATTRIBUTE",
    "VERSION_ATTRIBUTE",
    "EndpointProvider",
    "RegistrationProvider",
    "SecretTemplate",
    "address_of",
    "is_occupied",
    "is_served",
]
