"""A condition as a class: `metav1.Condition`, for the status of a class that stands for a kind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

__all__ = ["Condition", "ConditionStatus", "Conditions"]

Schema = dict[str, Any]
ConditionStatus = Literal["True", "False", "Unknown"]

_TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
_LIST_MAP: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An aspect of the state of an object."""

    type: Annotated[str, msgspec.Meta(max_length=316, pattern=_TYPE, description="Aspect, such as Ready.")]
    status: Annotated[ConditionStatus, msgspec.Meta(description="True, False or Unknown.")]
    reason: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=1024, pattern=_REASON, description="Cause of the status, as a CamelCase word."
        ),
    ]
    message: Annotated[
        str, msgspec.Meta(max_length=32768, description="Cause of the status, as a sentence; may be empty.")
    ]
    last_transition_time: Annotated[
        dt.datetime, msgspec.Meta(tz=True, description="Time of the last change of the status.")
    ]
    observed_generation: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(description="The metadata.generation of the object that the condition refers to."),
    ] = None

    # Pydantic calls these methods for models with a field of this class. So this module does not import pydantic.
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: msgspec.convert(value, cls),
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Schema:
        schema: Schema = msgspec.json.schema(cls)["$defs"][cls.__name__]
        return schema


class _Keywords:
    """Keywords of a field in the JSON schema of pydantic; `msgspec.Meta` has them for msgspec."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Schema]) -> Schema:
        return {**handler(core_schema), **_LIST_MAP}


Conditions: TypeAlias = Annotated[list[Condition], msgspec.Meta(extra_json_schema=_LIST_MAP), _Keywords()]
"""Conditions of a status by their type, so that several programs can own some: `conditions: Conditions = []`."""
