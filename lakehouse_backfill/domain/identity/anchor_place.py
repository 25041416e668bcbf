"""Where heads of logs are kept outside the lake, as a profile declares it."""

from __future__ import annotations

from pydantic import Field

from lakehouse_backfill.domain.serialization import Text, Value


class AnchorPlace(Value):
    """Where heads of logs are kept outside the lake; exactly one of the two."""

    folder: Text | None = Field(
        None, description="A folder in which the publisher may create files, but change none."
    )
    git: Text | None = Field(
        None, description="A repository that accepts new tags, and refuses to move or delete them."
    )
