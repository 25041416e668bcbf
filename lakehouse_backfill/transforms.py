"""The decorators of job code: `@transform`, and `@intermediate` for results that are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

__all__ = [
    "TRANSFORM_ATTRIBUTE",
    "IntermediateInfo",
    "TransformInfo",
    "intermediate",
    "intermediate_info",
    "sql_header",
    "transform",
    "transform_info",
]

TRANSFORM_ATTRIBUTE: Final = "__lakehouse_transform__"
_INTERMEDIATE_ATTRIBUTE: Final = "__lakehouse_intermediate__"

#: The version of the decorator's protocol: how the engine calls a transform.
API_VERSION: Final = "lakehouse-backfill/v1"
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")

_SQL_HEADER: Final = re.compile(
    r"^--[ \t]*(name|version|inputs|api_version)[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE
)

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
    #: The columns of its state, as `name type, …`; empty: it has none.
    state: str = ""

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
    *,
    name: str,
    version: str,
    inputs: Sequence[str],
    api_version: str = API_VERSION,
    state: str = "",
) -> Callable[[_Function], _Function]:
    """Mark a function as the transform `name` at `version`, and return it unchanged.

    The engine calls it as `function(context, input_1, ..., input_n)` with one DataFrame for each
    name in `inputs`, in that order. One with a state gets the state as one more DataFrame after
    them, and returns `(rows, state)`; see `docs/stateful.md`.

    Args:
        name: the transform's name, as the product's declaration spells it.
        version: a semantic version, `major.minor.patch`.
        inputs: names of the inputs that the function takes after `context`.
        api_version: the version of this protocol that the function is written for.
        state: columns and types of the state in Spark SQL, e.g. `"k bigint, total bigint"`.

    Raises:
        ValueError: the name is empty, the version is not `x.y.z`, `inputs` repeats or omits one, or
            this release does not know the api_version.
        TypeError: `inputs` is one string.
    """
    if isinstance(inputs, str):  # a string would become a tuple of its letters
        raise TypeError(f'transform inputs is the string {inputs!r}; write inputs=("{inputs}",)')
    info = TransformInfo(name, version, tuple(inputs), api_version, state.strip())

    def mark(function: _Function) -> _Function:
        setattr(function, TRANSFORM_ATTRIBUTE, info)
        return function

    return mark


def transform_info(function: object) -> TransformInfo | None:
    """Return what `@transform` attached to `function`, or None when it is not a transform."""
    info = getattr(function, TRANSFORM_ATTRIBUTE, None)
    return info if isinstance(info, TransformInfo) else None


@dataclass(frozen=True)
class IntermediateInfo:
    """The declaration of an intermediate result: its name, its inputs, its configuration.

    Raises:
        ValueError: a field is empty or malformed; the text says what to write.
    """

    name: str
    inputs: tuple[str, ...]
    config: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(
                f"intermediate name {self.name!r} is no name of a parameter; "
                'write for example name="rates_by_day"'
            )
        if not self.inputs or not all(name.strip() for name in (*self.inputs, *self.config)):
            raise ValueError(
                f"intermediate {self.name} has no inputs, or one of its names is empty; "
                'write the parameter names, for example inputs=("rates",)'
            )
        if len({self.name, *self.inputs}) != len(self.inputs) + 1:
            raise ValueError(f"intermediate {self.name} names an input twice, or itself")


def intermediate(
    *, name: str, inputs: Sequence[str], config: Sequence[str] = ()
) -> Callable[[_Function], _Function]:
    """Mark a function as the intermediate result `name` of the transforms of its file.

    A transform takes it as an input of that name. The engine calls the function as
    `function(config, input_1, ..., input_n)` with one DataFrame for each name in `inputs`, all of
    them reference data of the run, and keeps what it returns: chunks, later runs and other products
    of the same file read it again while code, snapshots and configuration are the same.

    Args:
        name: how the transform's `inputs` name it.
        inputs: names of the reference data that the function takes.
        config: names of the values of the run's `transform.config` that it takes.

    Raises:
        ValueError: a name is empty, given twice, or no name of a parameter.
        TypeError: `inputs` or `config` is one string.
    """
    for field, value in (("inputs", inputs), ("config", config)):
        if isinstance(value, str):  # a string would become a tuple of its letters
            raise TypeError(
                f'intermediate {field} is the string {value!r}; write {field}=("{value}",)'
            )
    info = IntermediateInfo(name, tuple(inputs), tuple(config))

    def mark(function: _Function) -> _Function:
        setattr(function, _INTERMEDIATE_ATTRIBUTE, info)
        return function

    return mark


def intermediate_info(function: object) -> IntermediateInfo | None:
    """Return what `@intermediate` attached to `function`, or None when it is none."""
    info = getattr(function, _INTERMEDIATE_ATTRIBUTE, None)
    return info if isinstance(info, IntermediateInfo) else None


def sql_header(text: str) -> dict[str, str]:
    """Return the header lines `-- name: value` of a SQL transform, as the decorator's arguments."""
    return dict(_SQL_HEADER.findall(text.replace("\r\n", "\n")))
