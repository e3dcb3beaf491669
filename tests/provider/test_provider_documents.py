"""YAML from untrusted authors."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kplane.provider.access import documents
from kplane.provider.access.documents import DocumentError, read_yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


@given(PLAIN)
def test_written_document_is_read_unchanged(value: object) -> None:
    assert read_yaml(yaml.dump(value, Dumper=WithoutAliases)) == value


@given(st.text(alphabet="ab:-?[]{},&*!|>'\"#% \n\t0"))
def test_reader_accepts_and_refuses_the_same_as_libyaml(text: str) -> None:
    # The scanner of PyYAML in Python differs from libyaml, for example in tabs.
    errors = (yaml.YAMLError, ValueError, RecursionError, TypeError)
    try:
        expected = yaml.load(text, Loader=yaml.CSafeLoader)
    except errors:
        with pytest.raises(errors):
            read_yaml(text)
    else:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.CSafeLoader)):
            with contextlib.suppress(DocumentError):
                assert repr(read_yaml(text)) == repr(expected)
        else:
            assert repr(read_yaml(text)) == repr(expected)


@pytest.mark.parametrize("document", ["[" * 200_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000])
def test_document_nested_too_deeply_raises_error(document: str) -> None:
    program = (
        "import sys, yaml; from kplane.provider.access.documents import read_yaml\ntry: read_yaml(sys.stdin.read())\n"
    )
    program += "except yaml.YAMLError: print('refused')"
    done = subprocess.run([sys.executable, "-c", program], input=document, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{at}: &a{at} {{<<: [*a{at - 1}, *a{at - 1}]}}\n" for at in range(1, 60))


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (MERGES, "has aliases"),
        ("a: &a [1]\nb: *a", "has aliases"),
        ("a: &a {b: *a}", "has aliases"),
        ("{<<: {a: 1}}", "has merge keys"),
        ("{" + "<<: {}, " * 30_000 + "}", "has merge keys|too many"),
        ("a: 1" + ":1" * 100_000, "number that is too long"),
        ("a: 1" + ":1" * 100_000 + ".5", "number that is too long"),
        ("a: 1\n" * 50_000, "too many entries"),
    ],
    ids=[
        "doubling merge keys",
        "alias",
        "alias of itself",
        "merge key",
        "merge keys",
        "sexagesimal",
        "sexagesimal fraction",
        "flat",
    ],
)
def test_short_document_that_expands_too_far_is_refused(document: str, sentence: str) -> None:
    with pytest.raises(DocumentError, match=sentence):
        read_yaml(document, most_nodes=10_000)


@pytest.mark.parametrize("document", ["!!bool x", "!!timestamp x", "!!int ''", "2000-99-99", "[1]: 2", "? {}\n: 1"])
def test_value_that_does_not_fit_its_tag_raises_document_error(document: str) -> None:
    with pytest.raises(DocumentError, match="no YAML document"):
        read_yaml(document)


def test_reader_without_libyaml_accepts_and_refuses_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml._yaml", None)
    monkeypatch.setattr(documents, "_LOADER", documents._loader())
    assert issubclass(documents._LOADER, yaml.SafeLoader)
    assert read_yaml("a: [1, {b: c}]") == {"a": [1, {"b": "c"}]}
    flat = f"[{'1, ' * 20}]"
    for text, sentence in ((MERGES, "has aliases"), ("{<<: {}}", "has merge keys"), (flat, "too many")):
        with pytest.raises(DocumentError, match=sentence):
            read_yaml(text, most_nodes=20)


def test_alias_of_plain_value_is_accepted() -> None:
    text = "clusters: [{ca: &ca AAAA, server: one}, {ca: *ca, server: two}]"
    assert read_yaml(text) == {"clusters": [{"ca": "AAAA", "server": "one"}, {"ca": "AAAA", "server": "two"}]}


def test_python_tag_creates_no_object() -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml("!!python/object/apply:os.getcwd []")
