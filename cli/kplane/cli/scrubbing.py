"""Takes secrets out of what leaves the cluster: by where they are in objects, and by what they look like in text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from kplane.api.names import ADOPT_ANNOTATION, ADOPTION_TOKEN_ANNOTATION, NAMESPACE_TOKEN_ANNOTATION

__all__ = ["REMOVED", "scrub_object", "scrub_text"]

REMOVED: Final = "(removed)"
_ANNOTATIONS: Final = frozenset(
    {
        ADOPTION_TOKEN_ANNOTATION,
        ADOPT_ANNOTATION,
        NAMESPACE_TOKEN_ANNOTATION,
        # It repeats the object as it was applied.
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
"""Annotations whose values are secrets, or may have some in them."""
_LOOKS: Final = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
    re.compile(r"AGE-SECRET-KEY-1[0-9A-Z]+"),
    # A JSON Web Token: a token of a ServiceAccount, or one of OpenID Connect.
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{8,}=*"),
    # Passwords in URLs.
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    # A key in PEM that is base64 again, as Secrets and kubeconfigs have it.
    re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}=*"),
)


def scrub_text(text: str) -> str:
    """Return a text with everything removed that looks like a secret."""
    for look in _LOOKS:
        text = look.sub(REMOVED, text)
    return text


def scrub_object(value: Any) -> Any:
    """Return a copy of an object without annotations that are secrets, and with all of its texts scrubbed."""
    if isinstance(value, Mapping):
        return {
            key: REMOVED if key in _ANNOTATIONS else scrub_object(each)
            for key, each in value.items()
            if key != "managedFields"
        }
    if isinstance(value, list):
        return [scrub_object(each) for each in value]
    return scrub_text(value) if isinstance(value, str) else value
