"""Write the CRD manifests: `python -m kplane.api.generate`. With `--check`, list the manifests that are out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kplane.api.control_plane import ControlPlane
from kplane.api.control_plane_class import ControlPlaneClass
from kplane.api.control_plane_endpoint import ControlPlaneEndpoint
from kplane.api.control_plane_registration import ControlPlaneRegistration
from kplane.api.control_plane_snapshot import ControlPlaneSnapshot
from kplane.api.resource import ResourceModel
from kplane.provider import Resource
from kplane.provider.crds import Column, definition, structural_schema, to_yaml

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
    """Return the CustomResourceDefinition of a kind. Raises SchemaError if its model has no structural schema."""
    resource = kind.resource
    namespaced = resource.scope == "Namespaced"
    return definition(
        Resource(resource.api_version, resource.kind, resource.plural, namespaced=namespaced),
        structural_schema(kind),
        columns=[Column(column.name, column.type, column.json_path, column.priority) for column in resource.columns],
        short_names=resource.short_names,
        categories=resource.categories,
        selectable=resource.selectable,
    )


def render() -> dict[str, str]:
    """Return the text of each manifest by its file name."""
    return {
        f"{kind.resource.group}_{kind.resource.plural}.yaml": _HEADER + to_yaml(crd_manifest(kind)) for kind in KINDS
    }


def main(arguments: Sequence[str] | None = None, *, directory: Path = _DIRECTORY) -> int:
    """Write the manifests into the directory, or compare them with the directory; return the exit status."""
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


if __name__ == "__main__":
    sys.exit(main())
