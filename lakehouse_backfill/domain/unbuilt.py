"""What a run manifest may already say, but this release does not do: refused when planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lakehouse_backfill.domain.defaults import DEFAULT_COMPUTE_PLACE
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import Unsupported

NOTHING_PLANNED = "nothing was planned, pinned or changed"


class NotYetSupported(NamedTuple):
    """A field with values that are refused, and what can be done today instead."""

    path: tuple[str, ...]
    refuses: Callable[[Any], bool]
    instead: Callable[[Any], str]

    @property
    def field(self) -> str:
        """The field as people write it."""
        return ".".join(self.path)

    def problem(self, value: Any) -> str:
        """Say what is refused."""
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{shown[:60]} is not built yet"


NOT_YET_SUPPORTED = (
    NotYetSupported(
        ("safety", "side_effects"),
        lambda value: value is True,
        lambda _: "write false; act on other systems after the publication, from its event",
    ),
    NotYetSupported(
        ("safety", "on_deletions"),
        lambda value: value == "allow",
        lambda _: (
            "write block; leave partitions that shall lose all rows out with "
            "target.partitions.except"
        ),
    ),
    NotYetSupported(
        ("compute", "pool"),
        lambda value: isinstance(value, str) and value != DEFAULT_COMPUTE_PLACE,
        lambda _: f"write {DEFAULT_COMPUTE_PLACE}, and choose the Spark with --profile NAME",
    ),
    NotYetSupported(
        ("compute", "scratch"),
        lambda value: isinstance(value, str) and value != DEFAULT_COMPUTE_PLACE,
        lambda _: f"write {DEFAULT_COMPUTE_PLACE}, and set spark.local.dir in the profile",
    ),
)


def require_supported(manifest: RunManifest) -> None:
    """Raise Unsupported when the manifest asks for what this release does not do."""
    for item in NOT_YET_SUPPORTED:
        value: Any = manifest
        for step in item.path:
            value = getattr(value, step)
        if item.refuses(value):
            raise Unsupported(
                f"{item.field}: {item.problem(value)}",
                state=NOTHING_PLANNED,
                fix=item.instead(value),
                field=item.field,
            )
