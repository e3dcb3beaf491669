"""Impersonation: requests as another user."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kplane.provider.errors import KubeconfigError

__all__ = ["Impersonation"]

_EXTRA: Final = "Impersonate-Extra-"
# RFC 7230's characters of a header name, without '%' that begins an escape: client-go's headerKeyEscape.
_PLAIN: Final = frozenset((string.ascii_lowercase + string.digits + "!#$&'*+-.^_`|~").encode())


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user of the requests; the credentials need permission to `impersonate`.

    Raises KubeconfigError if a value cannot be sent, or `user` is missing.
    """

    user: str
    uid: str | None = None
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.user:
            raise KubeconfigError("impersonation needs a user: as-uid, as-groups and as-user-extra are nothing alone")
        values: list[object] = [self.user, *self.groups, *(value for values in self.extra.values() for value in values)]
        for value in [*values, *([] if self.uid is None else [self.uid])]:
            if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
                raise KubeconfigError("whom to impersonate is no text that an HTTP header can carry")
        names: list[object] = [*self.extra]
        if not all(isinstance(name, str) and name for name in names):
            raise KubeconfigError("as-user-extra has a key that is no text")

    @classmethod
    def from_kubeconfig(cls, user: Mapping[str, Any]) -> Impersonation | None:
        """Read the impersonation of a kubeconfig's user, or return None."""
        asked = {key: user.get(key) for key in ("as", "as-uid", "as-groups", "as-user-extra")}
        if not any(asked.values()):
            return None
        groups, extra = asked["as-groups"] or [], asked["as-user-extra"] or {}
        if not isinstance(groups, list) or not isinstance(extra, Mapping):
            raise KubeconfigError("as-groups has to be a list, and as-user-extra a mapping of lists")
        if not all(isinstance(values, list) for values in extra.values()):
            raise KubeconfigError("as-user-extra has to be a mapping of lists")
        given = {name: tuple(values) for name, values in extra.items()}
        return cls(asked["as"] or "", asked["as-uid"] or None, tuple(groups), given)

    def to_kubeconfig(self) -> dict[str, Any]:
        """Return the fields of a kubeconfig's user."""
        return {
            "as": self.user,
            **({"as-uid": self.uid} if self.uid is not None else {}),
            **({"as-groups": list(self.groups)} if self.groups else {}),
            **({"as-user-extra": {name: list(values) for name, values in self.extra.items()}} if self.extra else {}),
        }

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of each request."""
        return [
            ("Impersonate-User", self.user),
            *([("Impersonate-Uid", self.uid)] if self.uid is not None else []),
            *(("Impersonate-Group", group) for group in self.groups),
            *((_EXTRA + _escaped(name), value) for name, values in self.extra.items() for value in values),
        ]


def _escaped(name: str) -> str:
    # API servers treat keys of extra as lower case.
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.lower().encode())
