"""Writes crds.md and a page for each kind below crds/, from the manifests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from tools.reference.markdown import code, escaped, page, table
from tools.reference.sources import ROOT

__all__ = ["kinds"]

Schema = Mapping[str, Any]

_DIRECTORY: Final = ROOT / "crds"


class _Field(NamedTuple):
    path: str
    schema: Schema
    required: bool


def kinds() -> Mapping[str, str]:
    """Return the pages by their paths."""
    manifests = [yaml.safe_load(path.read_text()) for path in sorted(_DIRECTORY.glob("*.yaml"))]
    manifests.sort(key=lambda manifest: str(manifest["spec"]["names"]["kind"]))
    rows = [_row(manifest["spec"]) for manifest in manifests]
    stems = [_stem(manifest["spec"]) for manifest in manifests]
    overview = page(
        "Custom resources",
        "This page lists the kinds of kplane. Each has a page with all of its fields.",
        table(["kind", "short names", "scope", "version", "meaning"], rows),
        "`kubectl explain controlplane.spec` shows the same text. The manifests are in [crds](../../crds).",
        ["```{toctree}", ":hidden:", "", *(f"crds/{stem}" for stem in stems), "```"],
    )
    return {"crds.md": overview} | {f"crds/{_stem(each['spec'])}.md": _page(each["spec"]) for each in manifests}


def _stem(spec: Schema) -> str:
    return str(spec["names"]["singular"])


def _row(spec: Schema) -> list[str]:
    names, version = spec["names"], spec["versions"][0]
    meaning = " ".join(_schema(version).get("description", "").split()).partition(". ")[0].rstrip(".")
    shorts = ", ".join(map(code, names["shortNames"]))
    return [f"[{names['kind']}](crds/{_stem(spec)}.md)", shorts, spec["scope"], version["name"], meaning]


def _schema(version: Schema) -> Schema:
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def _page(spec: Schema) -> str:
    version = spec["versions"][0]
    schema = _schema(version)
    parts: list[str | Iterable[str]] = []
    for part in ("spec", "status"):
        if part not in schema["properties"]:
            continue
        fields = [*_fields(schema["properties"][part], part)]
        parts += [f"## Fields of {part}", schema["properties"][part].get("description", "")]
        parts.append(table(["field", "type", "default", "meaning"], map(_described, fields)))
        if part == "spec" and (rules := [*_rules(schema["properties"][part], path=part)]):
            parts += ["## Rules of spec", "The API server refuses objects that break these.", rules]
    columns = [
        [each["name"], code(each["jsonPath"].removeprefix(".")), "wide" if each.get("priority") else ""]
        for each in version["additionalPrinterColumns"]
    ]
    return page(
        str(spec["names"]["kind"]),
        schema.get("description", ""),
        f"Objects have the apiVersion {code(spec['group'] + '/' + version['name'])} and are {_scope(spec)}.",
        *parts,
        "## Columns of kubectl get",
        "Columns that are *wide* appear with `-o wide` only.",
        table(["column", "field", "shown"], columns),
    )


def _scope(spec: Schema) -> str:
    return "cluster-scoped" if spec["scope"] == "Cluster" else "namespaced"


def _fields(schema: Schema, path: str) -> Iterator[_Field]:
    """Yield the fields below a schema, each field before the fields in it."""
    for name, inner in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        yield _Field(below, inner, name in schema.get("required", ()))
        yield from _fields(*_innermost(inner, below))


def _innermost(schema: Schema, path: str) -> tuple[Schema, str]:
    """Return the schema of the items of lists and maps, with the path to an item."""
    if "items" in schema:
        return _innermost(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        return _innermost(schema["additionalProperties"], f"{path}.*")
    return schema, path


def _described(field: _Field) -> list[str]:
    default = code(json.dumps(field.schema["default"])) if "default" in field.schema else ""
    return [
        code(field.path),
        _type(field.schema),
        default or ("required" if field.required else ""),
        field.schema.get("description", ""),
    ]


def _type(schema: Schema) -> str:
    """Return the type for readers, with its bounds."""
    if "items" in schema:
        return f"list of {_type(schema['items'])}{_bounds(schema, 'minItems', 'maxItems')}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {_type(schema['additionalProperties'])}{_bounds(schema, '', 'maxProperties')}"
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if schema["type"] == "string" and "format" in schema:
        return f"{schema['format']}"
    return f"{schema['type']}{_bounds(schema, 'minimum', 'maximum')}"


def _bounds(schema: Schema, least: str, most: str) -> str:
    if least in schema and most in schema:
        return f", {schema[least]} to {schema[most]}"
    if most in schema:
        return f", at most {schema[most]}"
    return f", at least {schema[least]}" if schema.get(least) else ""


def _rules(schema: Schema, *, path: str) -> Iterator[str]:
    """Yield the messages of validation rules without duplicates, with the field of each rule."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"- {code(path)}: {escaped(rule['message'])}"
    for name, inner in schema.get("properties", {}).items():
        yield from _rules(inner, path=f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], path=f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _rules(schema["additionalProperties"], path=f"{path}.*")
