"""Keys of a control plane, and their successors during a rotation, as entries of a single Secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Self

from kplane.api import RotationPhase
from kplane.pki.authorities import ENCRYPTION_KEY, TenantAuthorities, TrustedAuthorities
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.fingerprints import Fingerprints, fingerprints_of
from kplane.pki.primitives import public_key
from kplane.pki.rotation import Rotation

__all__ = ["Generations"]

_NEXT: Final = "next-"
_ROTATION: Final = "rotation.json"


@dataclass(frozen=True, slots=True)
class Generations:
    """Content of the authorities' Secret. Each write of the Secret is at most a single step of a rotation."""

    present: TenantAuthorities
    """The current authorities; during a rotation the old ones."""
    following: TenantAuthorities | None = None
    """The new authorities during a rotation; None otherwise."""
    rotation: Rotation | None = None
    """The latest rotation; None before the first rotation."""

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Self:
        """Read the result of `to_secret`. Raises CredentialsInvalid with the name of a missing or damaged entry."""
        rotation = _rotation(data)
        present, following = TenantAuthorities.from_secret(data), None
        if rotation is not None and rotation.phase is not RotationPhase.DONE:
            try:
                following = TenantAuthorities.from_secret(
                    {name.removeprefix(_NEXT): value for name, value in data.items() if name.startswith(_NEXT)}
                    | {name: value for name, value in data.items() if name == ENCRYPTION_KEY}
                )
            except CredentialsInvalid as error:
                raise CredentialsInvalid(f"of the new keys, whose entries begin with {_NEXT}: {error}") from None
        return cls(present, following, rotation)

    def to_secret(self) -> dict[str, bytes]:
        """Return the data for a Secret that only the operator may read. The caller must remove all other entries."""
        following = self.following.to_secret() if self.following is not None else {}
        rotation = self.rotation
        return {
            **self.present.to_secret(),
            **{f"{_NEXT}{name}": content for name, content in following.items() if name != ENCRYPTION_KEY},
            **({_ROTATION: json.dumps(rotation.to_json()).encode()} if rotation is not None else {}),
        }

    def advanced(self, rotation: Rotation, *, name: str) -> Self:
        """Return the generations after the next step. `name` is the control plane's name, for new authorities."""
        match rotation.phase:
            case RotationPhase.TRUSTING:
                created = replace(TenantAuthorities.create(name), encryption_key=self.present.encryption_key)
                return replace(self, following=created, rotation=rotation)
            case RotationPhase.DONE if self.following is not None:
                return replace(self, present=self.following, following=None, rotation=rotation)
        return replace(self, rotation=rotation)

    def not_yet_valid(self, *, now: datetime) -> dict[str, datetime]:
        """Return the entries with CA certificates that become valid in the future, each with that time."""
        following = self.following.not_yet_valid(now=now) if self.following is not None else {}
        return self.present.not_yet_valid(now=now) | {f"{_NEXT}{name}": time for name, time in following.items()}

    def with_valid_authorities(self, *, now: datetime) -> Self:
        """Return a copy with the same keys, and with new certificates for CAs that are not yet valid."""
        following = self.following.with_valid_authorities(now=now) if self.following is not None else None
        return replace(self, present=self.present.with_valid_authorities(now=now), following=following)

    def fingerprints(self) -> Fingerprints:
        """Return the fingerprints of all keys."""
        return fingerprints_of(self.to_secret())

    def in_force(self) -> TenantAuthorities:
        """Return the authorities that issue now, with the further authorities to trust."""
        old, new, rotation = self.present, self.following, self.rotation
        if new is None or rotation is None:
            return replace(old, rotation=rotation)
        match rotation.phase:
            case RotationPhase.TRUSTING:
                return replace(old, also_trusted=_trusted(new), rotation=rotation)
            case RotationPhase.OVERLAPPING:
                # The API server keeps a certificate of the old CA, because all clients trust that CA.
                trusted = replace(_trusted(old), serving=new.serving.certificate)
                return replace(new, serving=old.serving, also_trusted=trusted, rotation=rotation)
            case RotationPhase.DROPPING | RotationPhase.DONE:
                trusted = TrustedAuthorities(serving=old.serving.certificate)
                return replace(new, also_trusted=trusted, rotation=rotation)


def _trusted(authorities: TenantAuthorities) -> TrustedAuthorities:
    return TrustedAuthorities(
        serving=authorities.serving.certificate,
        client=authorities.client.certificate,
        front_proxy=authorities.front_proxy.certificate,
        etcd=authorities.etcd.certificate,
        service_account=public_key(authorities.service_account_key),
    )


def _rotation(data: Mapping[str, bytes]) -> Rotation | None:
    if _ROTATION not in data:
        return None
    try:
        return Rotation.from_json(json.loads(data[_ROTATION]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CredentialsInvalid(f"entry {_ROTATION} cannot be read") from None
