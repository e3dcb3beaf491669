"""YAML that somebody else wrote."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provider.documents import read_yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN)
def test_what_was_written_is_read(value: object) -> None:
    assert read_yaml(yaml.safe_dump(value)) == value


@given(st.text(alphabet="ab:-?[]{},&*!|>'\"#% \n\t0"))
def test_it_reads_what_libyaml_reads_and_refuses_what_that_refuses(text: str) -> None:
    # PyYAML's own scanner differs, in tabs for one.
    errors = (yaml.YAMLError, ValueError, RecursionError, TypeError)
    try:
        expected = yaml.load(text, Loader=yaml.CSafeLoader)
    except errors:
        with pytest.raises(errors):
            read_yaml(text)
    else:
        assert repr(read_yaml(text)) == repr(expected)


@pytest.mark.parametrize("document", ["[" * 200_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000])
def test_a_document_that_is_too_deep_is_an_error_and_not_the_end_of_the_process(document: str) -> None:
    program = "import sys; from provider.documents import read_yaml\ntry: read_yaml(sys.stdin.read())\n"
    program += "except RecursionError: print('refused')"
    done = subprocess.run([sys.executable, "-c", program], input=document, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_no_object_is_made_of_a_tag() -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml("!!python/object/apply:os.getcwd []")
