"""Configuration of a program as a pydantic model: its flags, environment variables, `--help` and reference.

A field `state_dir` is the flag `--state-dir`, and the environment variable `KPLANE_X_STATE_DIR` of a program with
prefix `KPLANE_X_`. The docstring of the field is the help. A flag takes precedence over the variable. A tuple is a flag
that may be repeated. Its variable has items that are separated by spaces and quoted as in a shell.
"""

from __future__ import annotations

import argparse
import enum
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import override

__all__ = ["Configuration", "ConfigurationError", "Directory", "File", "Flag", "HostPort", "Listen", "State"]


class ConfigurationError(Exception):
    """Raised if a flag is missing, or if its value is invalid; the message names the flag."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Presentation of a field in `--help`."""

    metavar: str | None = None
    group: str | None = None
    default: str | None = None
    """The default as text; None for the default of the field."""


class HostPort(NamedTuple):
    """Address on which a server listens."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _listen(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("this is not HOST:PORT, such as 127.0.0.1:8080")
    return HostPort(host.strip("[]"), int(port))


def _file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError("there is no such file")
    return path.absolute()


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError("there is no such directory")
    return path.absolute()


Listen = Annotated[HostPort, BeforeValidator(_listen), Flag("HOST:PORT")]
File = Annotated[Path, AfterValidator(_file)]
Directory = Annotated[Path, AfterValidator(_directory)]
State = Annotated[Path, AfterValidator(Path.absolute)]
"""A directory, which need not exist."""


class Configuration(BaseModel):
    """Base of the programs' configurations."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    program: ClassVar[str]
    environment_prefix: ClassVar[str]
    description: ClassVar[str]

    @classmethod
    def parse(cls, arguments: Sequence[str], *, environment: Mapping[str, str] = os.environ) -> Self:
        """Read flags and environment variables.

        Raises ConfigurationError with a sentence that names the flag. Exits as argparse does for `--help` and unknown
        flags.
        """
        parser = cls._parser()
        return cls._checked(vars(parser.parse_args(arguments)), environment)

    @classmethod
    def parse_known(
        cls, arguments: Sequence[str], *, environment: Mapping[str, str] = os.environ
    ) -> tuple[Self, list[str]]:
        """Read flags and environment variables as `parse` does, and also return unknown flags."""
        given, others = cls._parser().parse_known_args(arguments)
        return cls._checked(vars(given), environment), others

    @classmethod
    def flags(cls) -> list[str]:
        """Return every flag, including the `--no-` flags."""
        return [flag for action in cls._parser()._actions for flag in action.option_strings]  # noqa: SLF001 - no other way

    @classmethod
    def reference(cls) -> Iterator[str]:
        """Yield the lines of a Markdown table of flags for each group."""
        groups = dict.fromkeys([None, *(_looks(field).group for field in cls.model_fields.values())])
        for group in groups:
            yield from (f"### {group[0].upper()}{group[1:]}", "") if group else ()
            yield "| flag | environment variable | default | meaning |"
            yield "|---|---|---|---|"
            for name, field in cls.model_fields.items():
                if _looks(field).group != group:
                    continue
                default = _default(field) or ("needed" if field.is_required() else "")
                help_ = " ".join((field.description or "").split()).replace("|", "\\|")
                yield f"| `{_shown(name, field)}` | `{cls._variable(name)}` | {default} | {help_} |"
            yield ""

    @classmethod
    def _parser(cls) -> argparse.ArgumentParser:
        example = next(iter(cls.model_fields))
        parser = argparse.ArgumentParser(
            prog=cls.program,
            description=cls.description,
            epilog=f"An environment variable can take the place of each flag, such as {cls._variable(example)} of"
            f" {_flag(example)}. The flag wins. Items of a list are separated by spaces.",
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        groups: dict[str | None, Any] = {None: parser}
        for name, field in cls.model_fields.items():
            group = _looks(field).group
            if group not in groups:
                groups[group] = parser.add_argument_group(group)
            groups[group].add_argument(_flag(name), dest=name, help=_help(field), **_action(field))
        return parser

    @classmethod
    def _variable(cls, name: str) -> str:
        return f"{cls.environment_prefix}{name.upper()}"

    @classmethod
    def _checked(cls, given: Mapping[str, Any], environment: Mapping[str, str]) -> Self:
        values: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            text = environment.get(cls._variable(name))
            if not text:
                continue
            try:
                values[name] = shlex.split(text) if _is_list(field) else text
            except ValueError as error:
                raise ConfigurationError(f"{cls._variable(name)}: {error}; quote items as in a shell") from error
        try:
            return cls.model_validate({**values, **given})
        except ValidationError as error:
            raise ConfigurationError(_sentence(error)) from error


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _looks(field: FieldInfo) -> Flag:
    return next((item for item in reversed(field.metadata) if isinstance(item, Flag)), Flag())


def _kinds(annotation: Any) -> list[Any]:
    """Return the types that a value can have, except None."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [kind for member in get_args(annotation) if member is not NoneType for kind in _kinds(member)]
    return [annotation]


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is tuple and get_args(kind)[-1] is ... for kind in _kinds(field.annotation))


def _action(field: FieldInfo) -> dict[str, Any]:
    looks = _looks(field)
    for kind in _kinds(field.annotation):
        if kind is bool:
            return {"action": argparse.BooleanOptionalAction}
        if get_origin(kind) is Literal:
            return {"choices": list(get_args(kind))}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"choices": [choice.value for choice in kind]}
    return {"metavar": looks.metavar, **({"action": "append"} if _is_list(field) else {})}


def _default(field: FieldInfo) -> str:
    looks = _looks(field)
    if looks.default is not None or field.is_required() or field.default in (None, (), "", False):
        return looks.default or ""
    return str(field.default)


def _help(field: FieldInfo) -> str:
    default = _default(field)
    end = "; needed" if field.is_required() else f" (default: {default})" if default else ""
    repeated = "; may be repeated" if _is_list(field) else ""
    text = " ".join((field.description or "").split()).rstrip(".")
    return f"{text}{repeated}{end}".replace("%", "%%")


def _shown(name: str, field: FieldInfo) -> str:
    value = _action(field)
    if "choices" in value:
        return f"{_flag(name)} {{{','.join(value['choices'])}}}".replace("|", "\\|")
    return _flag(name) if value.get("metavar") is None else f"{_flag(name)} {value['metavar']}"


_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least {} is needed"),
    "less_than_equal": ("le", "at most {} is allowed"),
}


def _sentence(error: ValidationError) -> str:
    """Return a sentence about the first invalid flag."""
    first = error.errors(include_url=False)[0]
    cause = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return cause
    flag = _flag(str(first["loc"][0]))
    if first["type"] == "missing":
        return f"{flag} is needed"
    if first["type"] in _BOUNDS:
        name, words = _BOUNDS[first["type"]]
        cause = words.format(first.get("ctx", {})[name])
    return f"{flag} {first['input']}: {cause}"
