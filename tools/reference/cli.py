"""Writes cli.md: commands, arguments and options of `kplane`, and its exit codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from kplane.cli.errors import ExitCode
from kplane.cli.main import app
from tools.reference.markdown import code, escaped, page, table
from tools.reference.sources import ROOT, attributes, parsed

__all__ = ["command_line"]

_DEFAULT: Final = re.compile(r"\s*\[default: (?P<value>.*)\]$")
_REQUIRED: Final = re.compile(r"\s*\[required\]$")


def command_line() -> str:
    """Return the page."""
    group = typer.main.get_command(app)
    commands = [*_commands(group, name="kplane")]
    rows = [
        [f"[{code(name)}](#{name.replace(' ', '-')})", command.get_short_help_str(200)] for name, command in commands
    ]
    return page(
        "The command kplane",
        "This page lists the commands of `kplane`, which is also `kubectl kplane`.",
        table(["command", "what it does"], rows),
        "Each command has `--help` too.",
        *(part for name, command in commands for part in _command(command, name=name)),
        "## Options without a command",
        table(["option", "default", "meaning"], _parameters(group, name="kplane")),
        "## Exit codes",
        "`kplane connect` ends with the exit code of its command instead.",
        table(["code", "meaning"], _exit_codes()),
    )


def _commands(group: Any, *, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group and of its groups, with their full names."""
    for short, command in group.commands.items():
        full = f"{name} {short}"
        if hasattr(command, "commands"):
            yield from _commands(command, name=full)
        elif not command.hidden:
            yield full, command


def _command(command: Any, *, name: str) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    yield f"## {name}"
    yield f"```text\n{usage}\n```"
    yield escaped("\n\n".join(" ".join(each.split()) for each in (command.help or "").split("\n\n")))
    rows = [*_parameters(command, name=name)]
    yield "\n".join(table(["argument or option", "default", "meaning"], rows)) if rows else ""


def _parameters(command: Any, *, name: str) -> Iterator[list[str]]:
    """Yield the parameters as `--help` shows them."""
    context = typer.Context(command, info_name=name)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        shown, meaning = record
        default = ""
        if found := _DEFAULT.search(meaning):
            meaning, default = meaning[: found.start()], found["value"].replace("; x>=", "; at least ")
        elif found := _REQUIRED.search(meaning):
            meaning, default = meaning[: found.start()], "required"
        yield [code(shown.replace(" / ", ", ")), default, meaning]


def _exit_codes() -> Iterator[list[str]]:
    module = parsed(ROOT / "cli" / "kplane" / "cli" / "errors.py")
    [kind] = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "ExitCode"]
    described = {each.name: each.documentation for each in attributes(kind.body)}
    for each in ExitCode:
        yield [str(int(each)), described[each.name] or "The command did what it was to do."]
