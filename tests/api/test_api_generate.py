"""The CRD manifests: up to date, and equal to the models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kplane.api.generate import KINDS, crd_manifest, main, render
from kplane.embedded.manifests import crd_manifests


def test_committed_manifests_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_packaged_manifests_match_the_models() -> None:
    assert {manifest["metadata"]["name"]: manifest for manifest in crd_manifests()} == {
        kind.resource.crd_name: crd_manifest(kind) for kind in KINDS
    }


def test_generated_manifests_are_reproducible(tmp_path: Path) -> None:
    assert main([], directory=tmp_path) == 0
    manifests = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert manifests == render() == render()
    assert main(["--check"], directory=tmp_path) == 0


@pytest.mark.parametrize("drift", ["changed", "missing", "left over"])
def test_check_names_drifted_file_and_main_repairs_it(
    drift: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([], directory=tmp_path)
    file = tmp_path / next(iter(render()))
    match drift:
        case "changed":
            file.write_text(file.read_text().replace("Virtual", "Visual"))
        case "missing":
            file.unlink()
        case _:
            file = tmp_path / "old.yaml"
            file.write_text("{}")
    assert main(["--check"], directory=tmp_path) == 1
    assert str(file) in capsys.readouterr().err
    assert main([], directory=tmp_path) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == render()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_every_field_is_bounded(kind: Any) -> None:
    """A CEL rule over unbounded texts or lists exceeds the API server's cost budget, with later growth if not today."""
    unbounded = [path for path, schema in _fields(_schema_of(kind), "") if _is_unbounded(schema)]
    assert unbounded == [".apiVersion", ".kind"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_every_field_is_described(kind: Any) -> None:
    assert [
        path for path, schema in _fields(_schema_of(kind), "") if "description" not in schema and "[]" not in path
    ] == [".metadata"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_every_status_field_is_optional(kind: Any) -> None:
    """Writers add to a status piece by piece, so the first writer must not have to set other fields."""
    assert "required" not in _schema_of(kind)["properties"]["status"]


def _schema_of(kind: Any) -> dict[str, Any]:
    schema: dict[str, Any] = crd_manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _fields(field, f"{path}.{name}")
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from _fields(schema["items"], f"{path}[]")


def _is_unbounded(schema: dict[str, Any]) -> bool:
    match schema.get("type", "integer or string"):
        case "string" | "integer or string":
            return not schema.keys() & {"maxLength", "enum", "format"}
        case "array":
            return "maxItems" not in schema
        case _:
            return "additionalProperties" in schema and "maxProperties" not in schema
