"""Takes secrets out of what leaves the cluster: by where they are in objects, and by what they look like in text."""

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
        # It repeats the object as it was applied.
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
"""Annotations whose values are secrets, or may have some in them."""
_NAMES: Final = (
    r"(?:token|passw(?:or)?d|passphrase|(?:secret[_-]?)?access[_-]?key(?:[_-]?id)?|(?:api|secret|private)[_-]?key"
    r"|client[_-]?secret|signature|credential)"
)
"""Ends of the names of parameters, settings and fields that are secrets."""
_FIELDS: Final = rf"[\w.-]*(?:{_NAMES}|secret|client-key-data)"
_FIELD: Final = re.compile(_FIELDS, re.IGNORECASE)
_MARK: Final = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_BODY: Final = re.compile(r"(?:(?:\s|\\[nrt])*[A-Za-z0-9+/=]{16,})*(?:(?:\s|\\[nrt])+[A-Za-z0-9+/]*={1,2})?")
"""What follows the mark of a begin, whole lines and a last one."""
_BODY_BACKWARDS: Final = re.compile(r"(?:\s|[nrt]\\)*[A-Za-z0-9+/=]*(?:(?:\s|\\)+[A-Za-z0-9+/=]{16,})*")
_LOOKS: Final = (
    (re.compile(r"AGE-SECRET-KEY-1[0-9A-Z]+"), REMOVED),
    # A JSON Web Token: a token of a ServiceAccount, or one of OpenID Connect.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"), REMOVED),
    # A bootstrap token, by which a node joins.
    (re.compile(r"(?<![\w.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-])"), REMOVED),
    (re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{8,}=*"), REMOVED),
    (re.compile(r"(?i)(\bauthorization\W{1,8}(?:basic|bearer|token)\s+)[A-Za-z0-9._~+/=-]+"), rf"\1{REMOVED}"),
    # Users and passwords in URLs. A password may have slashes in it, and a port is none.
    (re.compile(r"(?<=://)[^\s/:@\"'<>]*:(?!\d{1,5}[/?#])[^\s\"'<>]+(?=@)"), REMOVED),
    (re.compile(r"(?<=//)[^\s/:@\"'<>?#]+(?=@)"), REMOVED),
    # Fields of JSON, and of JSON in a text of JSON.
    (re.compile(rf'(?i)("{_FIELDS}"\s*:\s*")(?:[^"\\]|\\.)+'), rf"\1{REMOVED}"),
    (re.compile(rf'(?i)(\\"{_FIELDS}\\"\s*:\s*\\")(?:[^"\\]|\\[^"]|\\\\\\")+'), rf"\1{REMOVED}"),
    # A field of YAML in a line of its own, and settings: of URLs, flags, environments.
    (re.compile(rf"(?im)^(\s*(?:- )?{_FIELDS}:[ \t]+)[^\s{{\[|>].*$"), rf"\1{REMOVED}"),
    (re.compile(rf"(?i)((?<![\w.-])[\w.-]*{_NAMES}=)(?:\"[^\"]*\"|'[^']*'|[^\s&,;\"'<>#]+)"), rf"\1{REMOVED}"),
    # A key in PEM that is base64 again, as Secrets and kubeconfigs have it.
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}=*"), REMOVED),
)


def scrub_text(text: str) -> str:
    """Return a text with everything removed that looks like a secret."""
    text = _without_keys(text)
    for look, replacement in _LOOKS:
        text = look.sub(replacement, text)
    return text


def _without_keys(text: str) -> str:
    """Remove keys in PEM. The begin or the end of one may be missing, as in a log that is cut."""
    text, *rest = _MARK.split(text)
    found, is_open = [text], False
    for mark, after in zip(rest[::2], rest[1::2], strict=True):
        if mark == "BEGIN":
            found += [REMOVED, after[cast("re.Match[str]", _BODY.match(after)).end() :]]
        elif is_open:
            found[-1] = after
        else:
            before = found[-1]
            length = cast("re.Match[str]", _BODY_BACKWARDS.match(before[::-1])).end()
            found[-1:] = [before[: len(before) - length], REMOVED, after]
        is_open = mark == "BEGIN"
    return "".join(found)


def scrub_object(value: Any) -> Any:
    """Return a copy of an object without annotations that are secrets, and with all of its texts scrubbed."""
    if isinstance(value, Mapping):
        return {key: _scrub_field(key, each) for key, each in value.items() if key != "managedFields"}
    if isinstance(value, list):
        return [scrub_object(each) for each in value]
    return scrub_text(value) if isinstance(value, str) else value


def _scrub_field(key: str, value: Any) -> Any:
    if key in _ANNOTATIONS or (isinstance(value, str) and value and _FIELD.fullmatch(key)):
        return REMOVED
    if key == "metadata" and isinstance(value, Mapping):
        # Names of Events look like bootstrap tokens.
        return {**scrub_object(value), **{name: value[name] for name in ("name", "namespace") if name in value}}
    return scrub_object(value)
