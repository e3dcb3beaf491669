"""Write the CRD manifests: `python -m kplane.api.generate`, or with `--check` say which of them are out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from typing_extensions import override

from kplane.api.control_plane import ControlPlane
from kplane.api.control_plane_class import ControlPlaneClass
from kplane.api.control_plane_endpoint import ControlPlaneEndpoint
from kplane.api.control_plane_registration import ControlPlaneRegistration
from kplane.api.control_plane_snapshot import ControlPlaneSnapshot
from kplane.api.resource import Column, ResourceModel
from kplane.api.structural import structural_schema

__all__ = ["KINDS", "crd_manifest", "main", "render"]

KINDS: Final[tuple[type[ResourceModel], ...]] = (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    ControlPlaneSnapshot,
)

_DIRECTORY: Final = Path(__file__).resolve().parents[3] / "crds"
_HEADER: Final = "# Generated from the models in api/ by `python -m kplane.api.generate`; change those instead.\n"


def crd_manifest(kind: type[ResourceModel]) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind; SchemaError where its model is not expressible as one."""
    resource = kind.resource
    version: dict[str, Any] = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in resource.columns],
        "schema": {"openAPIV3Schema": structural_schema(kind)},
    }
    if resource.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in resource.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.crd_name},
        "spec": {
            "group": resource.group,
            "scope": resource.scope,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": list(resource.short_names),
                "categories": list(resource.categories),
            },
            "versions": [version],
        },
    }


def render() -> dict[str, str]:
    """Return the manifests as they should be: text by file name."""
    return {
        f"{kind.resource.group}_{kind.resource.plural}.yaml": _HEADER
        + yaml.dump(crd_manifest(kind), Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)
        for kind in KINDS
    }


def main(arguments: Sequence[str] | None = None, *, directory: Path = _DIRECTORY) -> int:
    """Write the manifests into the directory, or compare them with it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kplane.api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a manifest is out of date")
    check: bool = parser.parse_args(arguments).check
    manifests = render()
    present = {path.name: path.read_text() for path in directory.glob("*.yaml")}
    outdated = sorted(name for name in manifests.keys() | present.keys() if manifests.get(name) != present.get(name))
    for name in outdated:
        if check:
            sys.stderr.write(f"{directory / name} is out of date: run `python -m kplane.api.generate`\n")
        elif name in manifests:
            (directory / name).write_text(manifests[name])
        else:
            (directory / name).unlink()
    return 1 if check and outdated else 0


def _column(column: Column) -> dict[str, Any]:
    described = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    return {**described, "priority": column.priority} if column.priority else described


class _PlainDumper(yaml.SafeDumper):
    """Repeats what appears twice, where YAML would put anchors and aliases."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    sys.exit(main())
