"""The keys of a control plane, with those that replace them during a rotation, as entries of one Secret."""

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
    """What the Secret of the authorities holds: one write of it is one step of an exchange, or none."""

    present: TenantAuthorities
    """The only ones; during an exchange the old ones."""
    following: TenantAuthorities | None = None
    """During an exchange the new ones."""
    rotation: Rotation | None = None
    """The latest exchange; None where there was none yet."""

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Self:
        """Read what `to_secret` wrote. Raises CredentialsInvalid with the entry that is missing or damaged."""
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
        """Return the data of a Secret that only the operator may read; an entry that is not in it has to go."""
        following = self.following.to_secret() if self.following is not None else {}
        rotation = self.rotation
        return {
            **self.present.to_secret(),
            **{f"{_NEXT}{name}": content for name, content in following.items() if name != ENCRYPTION_KEY},
            **({_ROTATION: json.dumps(rotation.to_json()).encode()} if rotation is not None else {}),
        }

    def advanced(self, rotation: Rotation, *, name: str) -> Self:
        """Return what there is as of the next step; `name` is the control plane's, for the new authorities."""
        match rotation.phase:
            case RotationPhase.TRUSTING:
                created = replace(TenantAuthorities.create(name), encryption_key=self.present.encryption_key)
                return replace(self, following=created, rotation=rotation)
            case RotationPhase.DONE if self.following is not None:
                return replace(self, present=self.following, following=None, rotation=rotation)
        return replace(self, rotation=rotation)

    def not_yet_valid(self, *, now: datetime) -> dict[str, datetime]:
        """Return the entries with certificates of CAs whose life begins in the future, each with that time."""
        following = self.following.not_yet_valid(now=now) if self.following is not None else {}
        return self.present.not_yet_valid(now=now) | {f"{_NEXT}{name}": time for name, time in following.items()}

    def with_valid_authorities(self, *, now: datetime) -> Self:
        """Return the same keys with certificates whose life has begun."""
        following = self.following.with_valid_authorities(now=now) if self.following is not None else None
        return replace(self, present=self.present.with_valid_authorities(now=now), following=following)

    def fingerprints(self) -> Fingerprints:
        """Return the fingerprints of all keys."""
        return fingerprints_of(self.to_secret())

    def in_force(self) -> TenantAuthorities:
        """Return the authorities that issue now, with those that are trusted besides."""
        old, new, rotation = self.present, self.following, self.rotation
        if new is None or rotation is None:
            return replace(old, rotation=rotation)
        match rotation.phase:
            case RotationPhase.TRUSTING:
                return replace(old, also_trusted=_trusted(new), rotation=rotation)
            case RotationPhase.OVERLAPPING:
                # The API server's own certificate is of the old CA, which all clients trust.
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
