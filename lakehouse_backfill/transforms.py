"""The `@transform` decorator, which marks a function as one version of a product's transform."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

__all__ = ["TRANSFORM_ATTRIBUTE", "TransformInfo", "transform", "transform_info"]

TRANSFORM_ATTRIBUTE: Final = "__lakehouse_transform__"

#: The version of the decorator's protocol: how the engine calls a transform.
API_VERSION: Final = "lakehouse-backfill/v1"
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class TransformInfo:
    """The declaration of a transform: its name, its version, the inputs that it reads.

    Raises:
        ValueError: a field is empty or malformed; the text says what to write.
    """

    name: str
    version: str
    inputs: tuple[str, ...]
    api_version: str = API_VERSION

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError('transform name is empty; write for example name="arrivals_daily"')
        if _VERSION.fullmatch(self.version) is None:
            raise ValueError(
                f"transform version {self.version!r} is not a semantic version; "
                'write three numbers, for example version="1.2.0"'
            )
        if self.api_version != API_VERSION:
            raise ValueError(
                f"transform api_version {self.api_version!r} is not one that this release calls; "
                f"write api_version={API_VERSION!r}, or leave it out"
            )
        if not all(name.strip() for name in self.inputs):
            raise ValueError(
                f"transform inputs {self.inputs!r} hold an empty name; "
                'write the parameter names, for example inputs=("flights", "airports")'
            )
        if len(set(self.inputs)) != len(self.inputs):
            raise ValueError(f"transform inputs {self.inputs!r} repeat a name; write each one once")


def transform(
    *, name: str, version: str, inputs: Sequence[str], api_version: str = API_VERSION
) -> Callable[[_Function], _Function]:
    """Mark a function as the transform `name` at `version`, and return it unchanged.

    The engine calls it as `function(context, input_1, ..., input_n)` with one DataFrame for each
    name in `inputs`, in that order.

    Args:
        name: the transform's name, as the product's declaration spells it.
        version: a semantic version, `major.minor.patch`.
        inputs: names of the inputs that the function takes after `context`.
        api_version: the version of this protocol that the function is written for.

    Raises:
        ValueError: the name is empty, the version is not `x.y.z`, `inputs` repeats or omits one, or
            this release does not know the api_version.
        TypeError: `inputs` is one string.
    """
    if isinstance(inputs, str):  # a string would become a tuple of its letters
        raise TypeError(f'transform inputs is the string {inputs!r}; write inputs=("{inputs}",)')
    info = TransformInfo(name, version, tuple(inputs), api_version)

    def mark(function: _Function) -> _Function:
        setattr(function, TRANSFORM_ATTRIBUTE, info)
        return function

    return mark


def transform_info(function: object) -> TransformInfo | None:
    """Return what `@transform` attached to `function`, or None when it is not a transform."""
    info = getattr(function, TRANSFORM_ATTRIBUTE, None)
    return info if isinstance(info, TransformInfo) else None
