"""Reads YAML that others wrote, fast: libyaml scans it, and Python puts it together.

PyYAML's own loader on libyaml, CSafeLoader, puts it together in C as well, by recursion without a limit: a document of
nothing but brackets ends the process (seen with PyYAML 6.0.3). Here it ends in a RecursionError.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

__all__ = ["read_yaml"]


def _loader() -> Any:
    try:
        from yaml._yaml import CParser
    except ImportError:  # an installation of PyYAML need not have libyaml
        return yaml.SafeLoader

    # Composer comes first, so that its methods are taken, and not those of CParser.
    class Loader(Composer, CParser, SafeConstructor, Resolver):
        def __init__(self, stream: str | bytes) -> None:
            CParser.__init__(self, stream)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


_LOADER: Final = _loader()


def read_yaml(source: str | bytes) -> Any:
    """Parse one document of plain data. Raises YAMLError, ValueError or RecursionError where it is none."""
    return yaml.load(source, Loader=_LOADER)  # noqa: S506 - it has the constructors of SafeLoader
