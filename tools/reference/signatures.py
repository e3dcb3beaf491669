"""Describes classes and functions of a module in Markdown, from their source."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from tools.reference.markdown import code, escaped, table
from tools.reference.sources import attributes, parsed

__all__ = ["Definition", "definition", "describe", "documentation", "is_error"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.Assign | ast.AnnAssign

_WIDE: Final = 100
_HIDDEN: Final = frozenset({"overload"})


def definition(path: Path, name: str) -> Definition:
    """Find the definition of a name in a module. Raises LookupError if the module does not define the name."""
    # Search from the end: a function with overloads has its docstring at the last definition.
    for node in reversed(parsed(path).body):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                return node
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)) if (
                target == name
            ):
                return node
    raise LookupError(f"failed to describe {name}: {path} does not define it")


def describe(path: Path, name: str) -> Iterator[str]:
    """Yield the parts of the description of a name: heading, signature, text, members."""
    node = _described(path, name)
    yield f"### {name}"
    match node:
        case ast.ClassDef():
            yield from _class(node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield _fenced(_signature(node, name=name))
            yield documentation(node)
        case _:
            [attribute] = [candidate for candidate in attributes(parsed(path).body) if candidate.name == name]
            yield _fenced(f"{name} = {ast.unparse(attribute.value)}")
            yield escaped(attribute.documentation)


def _described(path: Path, name: str) -> ast.AST:
    """Return a definition with the values of its constants.

    A class also gets the members of bases in modules beside it.
    """
    described: ast.AST = _Constants(path).visit(copy.deepcopy(definition(path, name)))
    if not isinstance(described, ast.ClassDef):
        return described
    beside = {
        alias.name: path.with_name(f"{(node.module or '').rpartition('.')[2]}.py")
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[:-1] == [*_package(path)]
        for alias in node.names
    }
    members: dict[str, ast.stmt] = {}
    for base in [item.id for item in described.bases if isinstance(item, ast.Name) and item.id in beside]:
        joined = _described(beside[base], base)
        if isinstance(joined, ast.ClassDef):
            members |= {ast.unparse(item): item for item in joined.body[1:]}
    described.bases = [item for item in described.bases if not (isinstance(item, ast.Name) and item.id in beside)]
    described.body += members.values()
    return described


def _package(path: Path) -> Sequence[str]:
    """Return the package of a module, such as `("kplane", "provider", "client")`."""
    parts = path.with_suffix("").parts
    return parts[len(parts) - 1 - parts[::-1].index("kplane") : -1]


class _Constants(ast.NodeTransformer):
    """Replaces the names of a module's private constants by their values, if these are literals."""

    def __init__(self, path: Path) -> None:
        constants = {
            attribute.name: attribute.value
            for attribute in attributes(parsed(path).body)
            if attribute.name.startswith("_")
        }
        self._values = {name: value for name, value in constants.items() if isinstance(value, ast.Constant)}

    @override
    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the value of a constant, or the unchanged name."""
        return self._values.get(node.id, node)


def documentation(node: ast.AST) -> str:
    """Return a docstring as paragraphs; indented lines in it are code."""
    text = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
    return escaped(inspect.cleandoc(text or ""))


def is_error(path: Path, name: str) -> bool:
    """Return whether a name is an exception, judged by the names of its bases."""
    class_definition = definition(path, name)
    if not isinstance(class_definition, ast.ClassDef):
        return False
    bases = [ast.unparse(base) for base in class_definition.bases]
    classes = {node.name for node in parsed(path).body if isinstance(node, ast.ClassDef)}
    return any(
        base == "Exception" or base.endswith("Error") or (base in classes and is_error(path, base)) for base in bases
    )


def _class(node: ast.ClassDef) -> Iterator[str]:
    yield _fenced(_class_signature(node))
    yield documentation(node)
    rows = [*_fields(node)]
    if rows:
        yield "\n".join(table(["attribute", "type", "meaning"], rows))
    for method in _methods(node):
        name = f"{node.name}.{method.name}"
        yield f"#### {name}"
        yield _fenced(_signature(method, name=method.name))
        yield documentation(method)


def _class_signature(node: ast.ClassDef) -> str:
    bases = [
        text for text in map(ast.unparse, node.bases) if not text.startswith(("Protocol", "Generic", "NamedTuple"))
    ]
    head = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    made = [
        statement for statement in node.body if isinstance(statement, ast.FunctionDef) and statement.name == "__init__"
    ]
    if not made:
        return head
    return f"{head}\n\n{_call(node.name, _parameters(made[-1]))}"


def _fields(node: ast.ClassDef) -> Iterator[list[str]]:
    """Yield the public attributes and properties that have a docstring, or the fields of a data class."""
    documented = {statement.name: statement.documentation for statement in attributes(node.body)}
    # An attribute without a value is no assignment, so `attributes` does not yield it.
    for number, statement in enumerate(node.body):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if not name.startswith("_"):
                text = documented.get(name) or _docstring_after(node.body, number) or _default(statement.value)
                yield [code(name), code(ast.unparse(annotation)), text]
            case ast.Assign(targets=[ast.Name(id=name)]) if documented.get(name) and not name.startswith("_"):
                yield [code(name), "", documented[name]]
            case ast.FunctionDef(name=name) if _is_property(statement) and not name.startswith("_"):
                returned = ast.unparse(statement.returns) if statement.returns is not None else ""
                yield [code(name), code(returned), (ast.get_docstring(statement) or "")]


def _default(value: ast.expr | None) -> str:
    return f"default {code(ast.unparse(value))}" if isinstance(value, ast.Constant) else ""


def _docstring_after(body: Sequence[ast.stmt], number: int) -> str:
    match body[number + 1 : number + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return text
        case _:
            return ""


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    for method in node.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
            continue
        if not _is_property(method) and ast.get_docstring(method) and not _decorators(method) & _HIDDEN:
            yield method


def _decorators(node: Function) -> set[str]:
    names = [
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in node.decorator_list
    ]
    return {name.rpartition(".")[2] for name in names}


def _is_property(node: Function) -> bool:
    return bool(_decorators(node) & {"property", "cached_property"})


def _signature(node: Function, *, name: str) -> str:
    decorators = _decorators(node)
    returned = ast.unparse(node.returns) if node.returns is not None else ""
    generates = any(isinstance(child, ast.Yield) for child in ast.walk(node))
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) and not generates else ""
    if "asynccontextmanager" in decorators or "contextmanager" in decorators:
        prefix = "async with " if "asynccontextmanager" in decorators else "with "
        returned = returned.partition("[")[2].removesuffix("]") or returned
    end = f" -> {returned}" if returned and returned != "None" else ""
    return _call(f"{prefix}{name}", _parameters(node), end=end)


def _call(name: str, parameters: Sequence[str], *, end: str = "") -> str:
    line = f"{name}({', '.join(parameters)}){end}"
    if len(line) <= _WIDE:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in parameters), f"){end}"])


def _parameters(node: Function) -> list[str]:
    """Render each parameter, without self and cls."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
    found = [_parameter(each, default) for each, default in zip(positional, defaults, strict=True)]
    is_static = "staticmethod" in _decorators(node)
    if positional and positional[0].arg in {"self", "cls"} and not is_static:
        found = found[1:]
    if given.vararg is not None:
        found.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [_parameter(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        found.append(f"**{_parameter(given.kwarg, None)}")
    return found


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {ast.unparse(argument.annotation)}"
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if argument.annotation is not None else f"{text}={ast.unparse(default)}"


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```"
