"""The end-to-end suite runs every command of the documents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from e2e.documents import DOCUMENTS, ON_PROCESSES, all_documents, blocks, document, script
from e2e.installation import ROOT, document_images, gateway_image, images

_DOCUMENT: Final = """
# One

<!-- e2e: route: cloud -->

```sh
false
```
```yaml
# file: values.yaml
a: $b
```
```yaml
b: 1
```
```sh
name=x
```
```console
$ false
```

## Two

```sh
cat values.yaml
echo $name
```
"""


@pytest.mark.parametrize("name", all_documents())
def test_bash_parses_commands_of_each_document(name: str) -> None:
    document_blocks = list(blocks(document(name)))
    process = subprocess.run(
        ["bash", "-n"], input=script(name, document_blocks), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_suite_lists_each_document_with_commands_of_main_route() -> None:
    """The suite would not run a block `sh` without a route in any other document."""
    names = {name for name in all_documents() if any(block.route is None for block in blocks(document(name)))}
    assert names == {*DOCUMENTS, *ON_PROCESSES}


def test_suite_builds_each_image_that_documents_name() -> None:
    """The fixture `released` provides each image that a command installs."""
    named = document_images()
    assert set(named.values()) == {*images(), gateway_image()}
    manifest = (ROOT / "deploy" / "install.yaml").read_text()
    assert set(re.findall(r"\bimage: \"?([^\s\"]+)", manifest)) <= set(named)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```bash\nfalse\n```\n", "write ```sh"),
        ("```sh\nfalse\n", "no end"),
        ("- x\n\n  ```sh\n  false\n  ```\n", "a block in a list is not run"),
        ("<!-- e2e: skip: too hard -->\n```sh\nfalse\n```\n", "write <!-- e2e: route"),
        ("<!-- e2e: route: x -->\nThen:\n```sh\nfalse\n```\n", "belongs to no block"),
    ],
)
def test_block_that_would_not_run_is_an_error(text: str, complaint: str, tmp_path: Path) -> None:
    """Readers would assume that such a block is tested."""
    file = tmp_path / "x.md"
    file.write_text(text)
    with pytest.raises(AssertionError, match=complaint):
        list(blocks(file))


def test_script_writes_files_and_keeps_variables_of_blocks(tmp_path: Path) -> None:
    """File blocks are written unchanged, and variables last to the end of the document."""
    file = tmp_path / "x.md"
    file.write_text(_DOCUMENT)
    document_blocks = list(blocks(file))
    assert [(block.section, block.route) for block in document_blocks] == [
        ("One", "cloud"),
        ("One", None),
        ("One", None),
        ("Two", None),
    ]
    text = script("x.md", [block for block in document_blocks if block.route is None])
    process = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "a: $b" in process.stdout.splitlines()
    assert "x" in process.stdout.splitlines()
