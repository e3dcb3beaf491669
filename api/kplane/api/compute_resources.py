"""Processor and memory of a program, in the terms and quantities of Kubernetes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, WithJsonSchema, model_validator

from kplane.api.extensions import Extension, Rule, rules
from kplane.api.resource import ApiModel

__all__ = ["ComputeResources", "ResourceAmounts", "StorageAmount", "quantity"]

_CPU: Final = "^([0-9]{1,6}([.][0-9]{1,3})?|[0-9]{1,9}m)$"
_MEMORY: Final = "^[0-9]{1,18}([.][0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
_FACTORS: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T"), start=1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}
_LENGTH: Final = 32
_PARTS: Final = re.compile("([0-9.]+)([A-Za-z]*)")


def quantity(text: str) -> Decimal:
    """Return the number that a quantity stands for, in cores or bytes. Raises ValueError if `text` is no quantity."""
    parts = _PARTS.fullmatch(text)
    if parts is None or parts[2] not in _FACTORS:
        raise ValueError(f"{text!r} is no quantity, such as 500m or 2Gi")
    return Decimal(parts[1]) * _FACTORS[parts[2]]


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _amount(name: str, *, pattern: str, example: str) -> Any:
    """Return the annotations of an amount: a positive quantity, as text or as an integer."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern.strip("^$"), text) or not quantity(text):
            raise ValueError(f"{text!r} is no amount of {name}, such as {example}")
        return text

    schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _LENGTH,
        "pattern": pattern,
        "x-kubernetes-int-or-string": True,
    }
    positive = Rule(
        rule="quantity(string(self)).isGreaterThan(quantity('0'))",
        message=f"an amount of {name} must be more than nothing, such as {example}",
    )
    return (BeforeValidator(_text), AfterValidator(check), WithJsonSchema(schema), Extension(rules(positive)))


StorageAmount = Annotated[str, *_amount("storage", pattern=_MEMORY, example="256Mi or 1Gi")]


class ResourceAmounts(ApiModel):
    """Amounts of resources."""

    cpu: Annotated[str, *_amount("cpu", pattern=_CPU, example="500m or 2")] | None = None
    """Cores, such as 500m or 2."""
    memory: Annotated[str, *_amount("memory", pattern=_MEMORY, example="512Mi or 2Gi")] | None = None
    """Bytes, such as 512Mi or 2Gi."""


def _not_less(name: str) -> Rule:
    limit, request = f"self.limits.{name}", f"self.requests.{name}"
    return Rule(
        rule=(
            f"!has(self.limits) || !has({limit}) || !has(self.requests) || !has({request})"
            f" || quantity(string({limit})).compareTo(quantity(string({request}))) >= 0"
        ),
        message=f"spec.resources.limits.{name} must not be less than spec.resources.requests.{name}",
        field_path=f".limits.{name}",
    )


class ComputeResources(ApiModel):
    """The resources that a program is guaranteed, and the resources that it cannot exceed."""

    model_config = ConfigDict(json_schema_extra=rules(_not_less("cpu"), _not_less("memory")))

    requests: ResourceAmounts | None = None
    """The resources that are reserved for the program on its node."""
    limits: ResourceAmounts | None = None
    """The resources that the program cannot exceed. The program is throttled at the limit of cpu, and killed and
    restarted above the limit of memory.
    """

    @model_validator(mode="after")
    def _limits_are_not_less(self) -> Self:
        if self.requests is not None and self.limits is not None:
            for name in ("cpu", "memory"):
                request, limit = getattr(self.requests, name), getattr(self.limits, name)
                if request is not None and limit is not None and quantity(limit) < quantity(request):
                    raise ValueError(
                        f"spec.resources.limits.{name} must not be less than spec.resources.requests.{name}"
                    )
        return self
