"""What a source that is a topic can do."""

from __future__ import annotations

from lakehouse_backfill.domain.sources.landings import SourceCapabilities

KAFKA = SourceCapabilities(
    kind="kafka", resumes_at="offset", range_of="timestamp of the record", finds_deletions=False
)
