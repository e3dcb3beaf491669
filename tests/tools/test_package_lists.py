"""The lists of packages in pyproject.toml, which `tools.packages` writes from the folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.packages import components, with_lists, without_layer


def test_component_is_folder_with_package_of_its_name(tmp_path: Path) -> None:
    for file in (
        "data/kplane/data/__init__.py",
        "api/kplane/api/__init__.py",
        "api/kplane/other/names.py",
        "docs/x.py",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert components(tmp_path) == ["api", "data"]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("{}/kplane", '["api/kplane", "data/kplane"]'),
        ("kplane.{}, without data", '["kplane.api"]'),
        ("{}, and e2e, tools", '["api", "data", "e2e", "tools"]'),
        ("{}, without api, data, and e2e", '["e2e"]'),
    ],
)
def test_list_holds_components_of_its_comment(comment: str, expected: str) -> None:
    tail = f"  # every component as {comment}\n"
    assert with_lists(f"src = []{tail}", names=["api", "data"]) == f"src = {expected}{tail}"


def test_list_without_comment_is_unchanged() -> None:
    assert with_lists('src = ["x"]  # ours\n', names=["api"]) == 'src = ["x"]  # ours\n'


def test_unknown_component_in_comment_is_refused() -> None:
    with pytest.raises(LookupError, match="leaves out \\['nosuch'\\]"):
        with_lists("src = []  # every component as {}, without nosuch\n", names=["api"])


def test_component_in_no_layer_is_found() -> None:
    contracts = """
        [[tool.importlinter.contracts]]
        type = "layers"
        containers = []
        layers = ["kplane.cli", "kplane.api | kplane.data"]
        [[tool.importlinter.contracts]]
        type = "layers"
        containers = ["kplane.mcm"]
        layers = ["kplane.mcm"]
    """
    assert without_layer(contracts, names=["api", "cli", "data", "mcm"]) == ["mcm"]
