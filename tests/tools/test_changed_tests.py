"""`make check` runs only the tests that a change can break."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.changed import changed_files, concerned

FILES = {
    "pyproject.toml": "[tool.ruff]\nsrc = ['.', 'below']\n",
    "pkg/__init__.py": "from pkg.near import Near as Close\nfrom .far import far\n",
    "pkg/near.py": "class Near: ...\n",
    "pkg/far.py": "import pkg.deep\ndef far(): ...\n",
    "pkg/deep.py": "",
    "pkg/alone.py": "",
    "pkg/data/values.yaml": "",
    "below/space/part/__init__.py": "",
    "below/space/part/thing.py": "from pkg.deep import anything\n",
    "docs/guide.md": "",
    "charts/one/values.yaml": "",
    "tests/conftest.py": "",
    "tests/one/conftest.py": "from .shared import fixture\n",
    "tests/one/shared.py": "def fixture():\n    from space.part import thing\n",
    "tests/one/test_of_shared.py": "",
    "tests/two/test_of_near.py": "from pkg import Close\n",
    "tests/two/test_of_far.py": "from pkg import far\n",
    "tests/two/test_of_package.py": "import pkg\n",
    "tests/two/test_of_guide.py": "GUIDE = 'guide.md'\n",
    "tests/two/test_of_charts.py": 'CHARTS = ROOT / "charts"\n',
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("pkg/near.py", {"near", "package"}),
        ("pkg/far.py", {"far", "package"}),
        ("pkg/deep.py", {"far", "package", "shared"}),
        ("pkg/alone.py", set()),
        ("pkg/__init__.py", {"package"}),
        ("pkg/data/values.yaml", {"package"}),
        ("below/space/part/thing.py", {"shared"}),
        ("docs/guide.md", {"guide"}),
        ("charts/one/values.yaml", {"charts"}),
        ("tests/one/shared.py", {"shared"}),
        ("tests/one/conftest.py", {"shared"}),
        ("tests/two/test_of_far.py", {"far"}),
        ("tests/conftest.py", {"shared", "near", "far", "package", "guide", "charts"}),
        ("pkg/deleted.py", set()),
    ],
)
def test_change_concerns_tests_that_import_or_name_it(repository: Path, changed: str, tests: set[str]) -> None:
    paths = concerned(repository, {repository / changed})
    assert {path.stem.removeprefix("test_of_") for path in paths} == tests


def test_changed_files_include_commits_and_uncommitted_files(repository: Path) -> None:
    def git(*args: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *args], cwd=repository, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    git("add", ".")
    git("commit", "-m", "first")
    assert changed_files(repository) == set()
    git("switch", "-c", "branch")
    (repository / "pkg/near.py").write_text("committed = 1\n")
    git("commit", "-a", "-m", "second")
    (repository / "pkg/far.py").write_text("not_committed = 1\n")
    (repository / "pkg/a new one.py").write_text("")
    names = {"pkg/near.py", "pkg/far.py", "pkg/a new one.py"}
    assert changed_files(repository) == {repository / name for name in names}
    assert changed_files(repository, base="HEAD") == {repository / name for name in names - {"pkg/near.py"}}
