"""Writes python.md and a page for each public package below python/."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kplane.testing.choice import CAPABILITIES
from tools.reference.markdown import code, page, table
from tools.reference.signatures import definition, describe, documentation, is_error
from tools.reference.sources import ROOT, attributes, parsed

__all__ = ["python_api"]

_PACKAGES: Final[Mapping[str, str]] = {
    "client": "Control planes from Python: create them, wait for them, use them, move and delete them.",
    "provider": "Controllers over a fleet of Kubernetes clusters that come and go, for authors of reconcilers.",
    "testing": "A Kubernetes cluster for tests, by a pytest plugin.",
}


_PROVIDER: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "controllers": (
        "What controllers are made of: kinds to watch, sources, predicates, options.",
        ["builder", "options", "sources", "handlers", "predicates", "rate_limiter"],
    ),
    "objects": ("Reads and writes of objects that most reconcilers need.", []),
    "providers": (
        "Find the clusters: files, kind, Secrets, Cluster API, ClusterProfiles and others.",
        [
            "capi", "clusters", "file", "inventory", "kind", "kplane", "milo", "multi", "namespace", "nop", "secrets",
            "single",
        ],
    ),
    "serving": ("Metrics and checks over HTTP.", ["http", "metrics"]),
    "webhooks": ("Webhooks of API servers: admission and conversion.", []),
    "testing": ("Clusters in memory, for tests of reconcilers.", []),
    "contrib.kopf": ("Runs an existing kopf operator in each cluster of a fleet.", []),
}  # fmt: skip
"""Public packages of provider and their modules. Without modules, the package itself has the names."""


def python_api() -> Mapping[str, str]:
    """Return the pages by their paths."""
    below = {f"provider.{name}": text for name, (text, _) in _PROVIDER.items()}
    listed = dict(sorted({**_PACKAGES, **below}.items()))
    overview = page(
        "Python packages",
        "This page lists the packages of kplane that your own code can import.",
        table(
            ["package", "what it is for"],
            ([f"[{code(f'kplane.{name}')}](python/{name}.md)", text] for name, text in listed.items()),
        ),
        "Their pages list the public names. Other modules may change in any release.",
        ["```{toctree}", ":hidden:", "", *(f"python/{name}" for name in listed), "```"],
    )
    return {
        **{f"python/provider.{name}.md": _modules(f"provider.{name}", *each) for name, each in _PROVIDER.items()},
        "python.md": overview,
        "python/client.md": _package("client"),
        "python/provider.md": _package("provider"),
        "python/testing.md": _testing(),
    }


def _modules(name: str, text: str, modules: Sequence[str]) -> str:
    """Describe the names in `__all__` of each module, or of the package itself."""
    parts: list[str] = []
    for module in [f"kplane.{name}.{each}" for each in modules] or [f"kplane.{name}"]:
        defined = _defined(_path(module))
        parts.append(f"## {module}")
        parts += [part for each, path in defined.items() for part in describe(path, each)]
    return page(f"kplane.{name}", text, *parts)


def _defined(path: Path) -> dict[str, Path]:
    """Return the modules that define the names of a module's `__all__`, by name."""
    module = parsed(path)
    imported = {
        alias.name: _path(node.module or "")
        for node in module.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kplane.")
        for alias in node.names
    }
    [names] = [ast.literal_eval(each.value) for each in attributes(module.body) if each.name == "__all__"]
    return {name: imported.get(name, path) for name in names}


def _package(name: str) -> str:
    """Describe the names in `__all__` of a package, from the modules that define them."""
    defined = _defined(ROOT / name / "kplane" / name / "__init__.py")
    groups: dict[str, list[str]] = {"Classes": [], "Functions": [], "Errors": [], "Constants": []}
    for each, path in sorted(defined.items(), key=lambda item: item[0].lower()):
        groups[_group(path, each)].append(each)
    parts = [
        part
        for group, names in groups.items()
        if names
        for part in (f"## {group}", *(text for each in names for text in describe(defined[each], each)))
    ]
    return page(f"kplane.{name}", _PACKAGES[name], *parts)


def _path(module: str) -> Path:
    path = ROOT / module.split(".")[1] / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _group(path: Path, name: str) -> str:
    match definition(path, name):
        case ast.ClassDef():
            return "Errors" if is_error(path, name) else "Classes"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return "Functions"
        case _:
            return "Constants"


def _testing() -> str:
    below = ROOT / "testing" / "kplane" / "testing"
    plugin = parsed(below / "plugin.py")
    return page(
        "kplane.testing",
        _PACKAGES["testing"],
        "pytest loads the plugin `kplane.testing.plugin` if kplane is installed.",
        "## Fixtures",
        table(["fixture", "scope", "meaning"], _fixtures(plugin)),
        "## Options of pytest",
        table(["option", "meaning"], _options(plugin)),
        "## Capabilities",
        "The marker `k8s_needs` skips a test if the cluster lacks one of these.",
        table(["capability", "meaning"], ([code(name), text] for name, text in CAPABILITIES.items())),
        "## Classes",
        *describe(below / "cluster.py", "Cluster"),
    )


def _fixtures(plugin: ast.Module) -> Iterator[list[str]]:
    for node in plugin.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            shown = ast.unparse(decorator)
            if shown.startswith("pytest.fixture"):
                yield [code(node.name), "session" if "session" in shown else "test", documentation(node)]


def _options(plugin: ast.Module) -> Iterator[list[str]]:
    for node in ast.walk(plugin):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="addoption"), args=[ast.Constant(value=str(name))], keywords=keywords
            ):
                given = {each.arg: each.value for each in keywords}
                yield [code(name), str(ast.literal_eval(given["help"]))]
            case ast.Call(func=ast.Attribute(attr="addini"), args=[_, ast.Constant(value=str(text))]):
                yield [f"{code('k8s_log_namespaces')} in the configuration", text]
            case _:
                pass
