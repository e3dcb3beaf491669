"""The end-to-end suite can run the commands of the documents, and misses none of them."""

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
def test_commands_are_well_formed(name: str) -> None:
    """Bash can parse the commands of each document."""
    found = list(blocks(document(name)))
    done = subprocess.run(["bash", "-n"], input=script(name, found), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_documents_are_all_of_those_with_commands_of_the_main_route() -> None:
    """No other document has a block `sh` without a route, because the suite would not run it."""
    found = {name for name in all_documents() if any(block.route is None for block in blocks(document(name)))}
    assert found == {*DOCUMENTS, *ON_PROCESSES}


def test_images_of_the_documents_are_those_that_are_built() -> None:
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
def test_what_would_not_be_run_is_told(text: str, complaint: str, tmp_path: Path) -> None:
    """A block that looks tested and is not is an error."""
    file = tmp_path / "x.md"
    file.write_text(text)
    with pytest.raises(AssertionError, match=complaint):
        list(blocks(file))


def test_blocks_are_run_as_one_shell_would(tmp_path: Path) -> None:
    """Files are written as shown, and variables last to the end of the document."""
    file = tmp_path / "x.md"
    file.write_text(_DOCUMENT)
    found = list(blocks(file))
    assert [(block.section, block.route) for block in found] == [
        ("One", "cloud"),
        ("One", None),
        ("One", None),
        ("Two", None),
    ]
    text = script("x.md", [block for block in found if block.route is None])
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "a: $b" in done.stdout.splitlines()
    assert "x" in done.stdout.splitlines()
