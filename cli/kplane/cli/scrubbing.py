"""Removal of secrets from data that leave the cluster: by their place in objects, and by their form in text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from kplane.api.names import ADOPT_ANNOTATION, ADOPTION_TOKEN_ANNOTATION, NAMESPACE_TOKEN_ANNOTATION

__all__ = ["REMOVED", "scrub_object", "scrub_text"]

REMOVED: Final = "(removed)"
_ANNOTATIONS: Final = frozenset(
    {
        ADOPTION_TOKEN_ANNOTATION,
        ADOPT_ANNOTATION,
        NAMESPACE_TOKEN_ANNOTATION,
        # It contains the whole object as it was applied.
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
"""Annotations whose values are secrets, or may contain secrets."""
_NAMES: Final = (
    r"(?:token|passw(?:or)?d|passphrase|(?:secret[_-]?)?access[_-]?key(?:[_-]?id)?|(?:api|secret|private)[_-]?key"
    r"|client[_-]?secret|signature|credential)"
)
"""Ends of the names of parameters, settings and fields that are secrets."""
_FIELDS: Final = rf"[\w.-]*(?:{_NAMES}|secret|client-key-data)"
_FIELD: Final = re.compile(_FIELDS, re.IGNORECASE)
_MARK: Final = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_BODY: Final = re.compile(r"(?:(?:\s|\\[nrt])*[A-Za-z0-9+/=]{16,})*(?:(?:\s|\\[nrt])+[A-Za-z0-9+/]*={1,2})?")
"""Text after the mark of a begin: whole lines and a last line."""
_BODY_BACKWARDS: Final = re.compile(r"(?:\s|[nrt]\\)*[A-Za-z0-9+/=]*(?:(?:\s|\\)+[A-Za-z0-9+/=]{16,})*")
_LOOKS: Final = (
    (re.compile(r"AGE-SECRET-KEY-1[0-9A-Z]+"), REMOVED),
    # A JSON Web Token: a token of a ServiceAccount, or a token of OpenID Connect.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"), REMOVED),
    # A bootstrap token of a joining node.
    (re.compile(r"(?<![\w.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-])"), REMOVED),
    (re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{8,}=*"), REMOVED),
    (re.compile(r"(?i)(\bauthorization\W{1,8}(?:basic|bearer|token)\s+)[A-Za-z0-9._~+/=-]+"), rf"\1{REMOVED}"),
    # Users and passwords in URLs. A password may contain slashes. A number after the colon is a port.
    (re.compile(r"(?<=://)[^\s/:@\"'<>]*:(?!\d{1,5}[/?#])[^\s\"'<>]+(?=@)"), REMOVED),
    (re.compile(r"(?<=//)[^\s/:@\"'<>?#]+(?=@)"), REMOVED),
    # Fields of JSON, and of JSON in a string of JSON.
    (re.compile(rf'(?i)("{_FIELDS}"\s*:\s*")(?:[^"\\]|\\.)+'), rf"\1{REMOVED}"),
    (re.compile(rf'(?i)(\\"{_FIELDS}\\"\s*:\s*\\")(?:[^"\\]|\\[^"]|\\\\\\")+'), rf"\1{REMOVED}"),
    # A field of YAML in its own line, and settings in URLs, flags and environments.
    (re.compile(rf"(?im)^(\s*(?:- )?{_FIELDS}:[ \t]+)[^\s{{\[|>].*$"), rf"\1{REMOVED}"),
    (re.compile(rf"(?i)((?<![\w.-])[\w.-]*{_NAMES}=)(?:\"[^\"]*\"|'[^']*'|[^\s&,;\"'<>#]+)"), rf"\1{REMOVED}"),
    # A PEM key that is encoded in base64 again, as in Secrets and kubeconfigs.
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}=*"), REMOVED),
)


def scrub_text(text: str) -> str:
    """Return a text without parts that look like a secret."""
    text = _without_keys(text)
    for look, replacement in _LOOKS:
        text = look.sub(replacement, text)
    return text


def _without_keys(text: str) -> str:
    """Remove PEM keys. The begin or the end of a key may be missing, as in a truncated log."""
    text, *rest = _MARK.split(text)
    pieces, is_open = [text], False
    for mark, after in zip(rest[::2], rest[1::2], strict=True):
        if mark == "BEGIN":
            pieces += [REMOVED, after[cast("re.Match[str]", _BODY.match(after)).end() :]]
        elif is_open:
            pieces[-1] = after
        else:
            before = pieces[-1]
            length = cast("re.Match[str]", _BODY_BACKWARDS.match(before[::-1])).end()
            pieces[-1:] = [before[: len(before) - length], REMOVED, after]
        is_open = mark == "BEGIN"
    return "".join(pieces)


def scrub_object(value: Any) -> Any:
    """Return a copy of an object without annotations that are secrets, and with all of its texts scrubbed."""
    if isinstance(value, Mapping):
        return {key: _scrub_field(key, item) for key, item in value.items() if key != "managedFields"}
    if isinstance(value, list):
        return [scrub_object(item) for item in value]
    return scrub_text(value) if isinstance(value, str) else value


def _scrub_field(key: str, value: Any) -> Any:
    if key in _ANNOTATIONS or (isinstance(value, str) and value and _FIELD.fullmatch(key)):
        return REMOVED
    if key == "metadata" and isinstance(value, Mapping):
        # Names of Events look like bootstrap tokens.
        return {**scrub_object(value), **{name: value[name] for name in ("name", "namespace") if name in value}}
    return scrub_object(value)
