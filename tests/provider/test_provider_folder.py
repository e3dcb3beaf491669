"""Folders of kubeconfig files: patterns, limits of the search, and log messages."""

from __future__ import annotations

import pytest

from kplane.provider.providers.file import folder as module
from kplane.provider.providers.file.folder import Folder


@pytest.fixture
def tree(tmp_path):
    """Return a function that creates files below a folder and returns the folder."""

    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a.yaml", "b"]),
        ("*.yaml", ["a.yaml"]),
        ("*/*", ["eu/c.yaml"]),
        ("eu/c.yaml", ["eu/c.yaml"]),
        ("**", ["a.yaml", "b", "eu/c.yaml", "eu/west/d.yaml"]),
        ("**/*.yaml", ["a.yaml", "eu/c.yaml", "eu/west/d.yaml"]),
        ("eu/**/*.yaml", ["eu/c.yaml", "eu/west/d.yaml"]),
        ("**/west/*", ["eu/west/d.yaml"]),
        (".*", [".hidden"]),
        ("missing/*", []),
    ],
)
def test_folder_finds_files_that_match_the_pattern(tree, pattern, found):
    path = tree("a.yaml", "b", "eu/c.yaml", "eu/west/d.yaml", ".hidden", ".git/config")
    assert Folder(path, pattern=pattern).files() == found


def test_folder_finds_files_behind_links(tree, tmp_path):
    """Kubernetes mounts a Secret like this: each file is a link through a link to a hidden directory."""
    path = tree("..2026_11_28/a.yaml")
    (tmp_path / "..data").symlink_to("..2026_11_28")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "nowhere").symlink_to("missing")
    for pattern in ("*", "**"):
        assert Folder(path, pattern=pattern).files() == ["a.yaml"]


@pytest.mark.parametrize("pattern", ["**", "**/*.yaml", "/".join(["*"] * 12), "**/**/**/*.yaml"])
def test_search_ends_in_folders_that_contain_themselves(tree, tmp_path, pattern):
    path = tree("a.yaml", "d/b.yaml")
    for number in range(10):
        (tmp_path / f"loop-{number}").symlink_to(".")
        (tmp_path / "d" / f"loop-{number}").symlink_to("..")
    folder = Folder(path, pattern=pattern)
    files = folder.files()
    assert len(files) <= module._MAX_ENTRIES
    if pattern.startswith("**"):
        assert files == ["a.yaml", "d/b.yaml"]


def test_search_ends_at_the_limit_of_entries(tree, monkeypatch, caplog):
    monkeypatch.setattr(module, "_MAX_ENTRIES", 20)
    folder = Folder(tree(*(f"{number:02}" for number in range(30))), pattern="*")
    assert len(folder.files()) == 20
    look(folder, kubeconfigs=20)
    look(folder, kubeconfigs=20)
    assert caplog.text.count("it has more than 20 entries") == 1


def test_search_ends_at_the_limit_of_depth(tree, monkeypatch):
    monkeypatch.setattr(module, "_MAX_DEPTH", 2)
    path = tree("a", "1/b", "1/2/c", "1/2/3/d")
    assert Folder(path, pattern="**").files() == ["1/2/c", "1/b", "a"]


def look(folder, *, kubeconfigs=0):
    """Search like the provider: the first files are kubeconfigs, the others are not."""
    folder.name_unread(folder.files()[kubeconfigs:], kubeconfigs=kubeconfigs)


def test_folder_names_unread_files_once(tree, caplog):
    caplog.set_level("INFO")
    path = tree("a.kubeconfig", "b.kubeconfig", "notes.txt", ".hidden")
    folder = Folder(path, pattern="*.kubeconfig")
    look(folder, kubeconfigs=1)
    look(folder, kubeconfigs=1)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"folder {path}: not read: 'b.kubeconfig' is no kubeconfig, 'notes.txt' does not match '*.kubeconfig'"
    )
    tree("new.txt")
    look(folder, kubeconfigs=1)
    assert caplog.records[-1].getMessage() == f"folder {path}: not read: 'new.txt' does not match '*.kubeconfig'"


def test_folder_names_ten_of_many_unread_files(tree, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "_MAX_REPORTED", 15)
    folder = Folder(tree(*(f"{number:02}" for number in range(12))), pattern="*.yaml")
    look(folder, kubeconfigs=0)
    (line,) = [text for text in caplog.messages if "not read" in text]
    assert line.endswith("'09' does not match '*.yaml', and 2 more")
    tree(*(f"x{number}" for number in range(9)))
    look(folder)
    tree("later")
    look(folder)
    assert [text.count("does not match") for text in caplog.messages if "not read" in text] == [10, 3]


def test_folder_that_is_missing_or_empty_is_named_once(tmp_path, caplog):
    path = tmp_path / "clusters"
    folder = Folder(str(path), pattern="*.yaml")
    look(folder)
    look(folder)
    path.mkdir()
    look(folder)
    look(folder)
    assert caplog.messages == [
        f"folder {path}: it does not exist; its kubeconfigs are read once it does",
        f"folder {path}: it has no kubeconfig that matches '*.yaml'; clusters join when one is there",
    ]
    (path / "a.yaml").touch()
    look(folder, kubeconfigs=1)
    (path / "a.yaml").unlink()
    look(folder)
    assert len(caplog.messages) == 3


def test_folder_that_cannot_be_read_is_named(tmp_path, caplog):
    (tmp_path / "file").touch()
    look(Folder(str(tmp_path / "file"), pattern="*"))
    assert "it cannot be read: Not a directory" in caplog.text
