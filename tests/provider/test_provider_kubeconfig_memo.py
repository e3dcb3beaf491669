"""The memo of kubeconfigs: unchanged texts are parsed once."""

from __future__ import annotations

import pytest
import yaml

from kplane.provider import ClusterConfig
from kplane.provider.access import documents
from kplane.provider.errors import KubeconfigError
from kplane.provider.providers._support.memo import KubeconfigMemo


@pytest.fixture
def parsed(monkeypatch):
    seen = []
    read = documents.read_yaml
    monkeypatch.setattr(documents, "read_yaml", lambda text, **options: (seen.append(text), read(text, **options))[1])
    return seen


def kubeconfig(token):
    return yaml.safe_dump(ClusterConfig("https://h", token=token).to_kubeconfig()).encode()


def test_memo_parses_unchanged_kubeconfig_once(parsed):
    memo = KubeconfigMemo()
    one, other = kubeconfig("one"), kubeconfig("other")
    for _ in range(3):
        assert memo.read(one).token == "one"
        assert memo.read(other).token == "other"
    assert parsed == [one, other]


def test_memo_repeats_error_without_parsing_again(parsed):
    memo = KubeconfigMemo()
    for _ in range(3):
        with pytest.raises(KubeconfigError, match="no YAML document"):
            memo.read(b"{")
    assert parsed == [b"{"]


def test_memo_evicts_least_recently_used(parsed):
    texts = [kubeconfig(f"token-{number}") for number in range(4)]
    memo = KubeconfigMemo(most_bytes=3 * len(texts[0]))
    for text in (*texts[:3], texts[0], texts[3], texts[0], texts[2], texts[1]):
        memo.read(text)
    assert parsed == [*texts, texts[1]]
    assert memo._bytes == 3 * len(texts[0])
