"""Restate partitions of Apache Iceberg tables safely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_backfill.transforms import transform

if TYPE_CHECKING:
    from lakehouse_backfill.project import Project, accepted

__version__ = "0.1.0"
__all__ = ["Project", "__version__", "accepted", "transform"]


def __getattr__(name: str) -> Any:
    """Load `Project` and `accepted` on first use, so that a job imports only the decorator."""
    if name in ("Project", "accepted"):
        from lakehouse_backfill import project

        return getattr(project, name)
    raise AttributeError(f"module 'lakehouse_backfill' has no attribute {name!r}")
