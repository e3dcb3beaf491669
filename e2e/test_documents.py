"""Runs the commands of the documents, from installation to uninstallation, on a cluster without kplane."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from e2e.documents import DOCUMENTS, blocks, document
from e2e.installation import chart_values
from e2e.nodes import Nodes
from e2e.reader import Reader

_SECONDS: Final = 1800


@pytest.fixture(scope="module")
def reader(reader_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A single reader for all documents. Each document continues after the previous document."""
    return Reader.in_checkout(tmp_path_factory.mktemp("documents"), environment=reader_environment)


@pytest.fixture(scope="module")
def next_version(nodes: Nodes) -> Iterator[None]:
    """Provide the image of the next Kubernetes version, which docs/how-to/upgrade-kubernetes.md names.

    The image has the present version, because the test covers only the replacement of an image.
    """
    match = re.search(r"^image=(\S+)$", document("how-to/upgrade-kubernetes").read_text(), re.MULTILINE)
    assert match is not None
    with nodes.image_named(chart_values()["controlPlanes"]["kubeApiserverImage"], also=match[1]):
        yield


@pytest.mark.k8s_needs("pods", "images")
@pytest.mark.timeout(_SECONDS, func_only=True)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_of_document_succeed_in_order(released: None, next_version: None, reader: Reader, name: str) -> None:
    reader.follow(name, [block for block in blocks(document(name)) if block.route is None])
