"""The effective configuration of an instance in a few characters: another one means another process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Final

from kplane.mcm.describe.controllers import READERS, SERVING
from kplane.workloads import Component

__all__ = ["fingerprint"]

_LENGTH: Final = 12
_PLACE: Final = ("--bind-address=", "--secure-port=")
_OURS: Final = frozenset({*SERVING, READERS})


def fingerprint(components: Iterable[Component]) -> str:
    """Tell the configuration of the instances of one cluster, all together, from any other one.

    It is the same in every run of mcm: ports and certificates between mcm and its instances do not count, nor do files
    that a program reads again by itself, nor limits, which all instances of a run have alike. It is for people, and to
    see to turns; whether a process is replaced, the runtime finds out by itself (`Runtime.apply`).
    """
    described = [
        [
            component.program,
            [argument for argument in component.args if not argument.startswith(_PLACE)],
            {
                name: None if file.reloaded else hashlib.sha256(file.content).hexdigest()
                for name, file in component.files.items()
                if name not in _OURS
            },
            dict(component.env),
        ]
        for component in components
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:_LENGTH]
