"""Webhooks of API servers: admission and conversion. See `Webhooks`."""

from __future__ import annotations

from kplane.provider.webhooks.admission import Admission, Denied, User
from kplane.provider.webhooks.configurations import AdmissionRule
from kplane.provider.webhooks.self_signed import SelfSigned
from kplane.provider.webhooks.server import Webhooks

__all__ = ["Admission", "AdmissionRule", "Denied", "SelfSigned", "User", "Webhooks"]
