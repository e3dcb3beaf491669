"""Reads untrusted YAML, fast: libyaml scans the document, and Python composes it.

PyYAML's own loader on libyaml, CSafeLoader, composes in C, by recursion without a limit. A document of brackets alone
ends the process (seen with PyYAML 6.0.3).

This module refuses such a document. It also refuses constructs that cause much work with few bytes: aliases of mappings
and lists, merge keys, and very long numbers. For example, a few lines of nested merge keys take exponential time.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from typing_extensions import override
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.resolver import Resolver

__all__ = ["DocumentError", "read_yaml"]

_LONGEST_NUMBER: Final = 100
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_MERGE: Final = "tag:yaml.org,2002:merge"


class DocumentError(yaml.YAMLError):
    """The document cannot be read. The message is a predicate, such as "is no YAML document"."""


class _Plain(Composer, SafeConstructor):
    """Composes trees of plain data in time linear to their size."""

    nodes_left: int | None = None
    check_event: Any  # the parser's

    @override
    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        is_alias = self.check_event(AliasEvent)
        if self.nodes_left is not None:
            self.nodes_left -= 1
            if self.nodes_left < 0:
                raise DocumentError("has too many entries; keep only those that are needed")
        node = super().compose_node(parent, index)
        # Aliases of scalars are cheap, and people write them by hand: the same CA for several clusters.
        if is_alias and not isinstance(node, ScalarNode):
            raise DocumentError("has aliases (*name) of mappings or lists; write out what they stand for")
        if isinstance(node, ScalarNode) and node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            raise DocumentError("has a number that is too long; put quotes around what is text")
        return node

    @override
    def flatten_mapping(self, node: MappingNode) -> None:
        if any(key.tag == _MERGE for key, _ in node.value):
            raise DocumentError("has merge keys (<<), which are not read; write out what they stand for")
        super().flatten_mapping(node)


def _loader() -> Any:
    # _Plain comes first, so that its methods and those of Composer override the methods of the parser.
    try:
        from yaml._yaml import CParser
    except ImportError:  # an installation of PyYAML need not have libyaml

        class PythonLoader(_Plain, yaml.SafeLoader):
            pass

        return PythonLoader

    class Loader(_Plain, CParser, Resolver):
        def __init__(self, stream: str | bytes) -> None:
            CParser.__init__(self, stream)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


_LOADER: Final = _loader()


def read_yaml(source: str | bytes, *, most_nodes: int | None = None) -> Any:
    """Parse a document of plain data, with at most `most_nodes` keys and values. Raises DocumentError.

    Parsing takes about 10 microseconds for each key or value.
    """
    try:
        loader = _LOADER(source)
        loader.nodes_left = most_nodes
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except DocumentError:
        raise
    except Exception as error:
        # PyYAML's constructors raise any error for a value that does not fit its tag: KeyError, AttributeError.
        raise DocumentError("is no YAML document") from error
