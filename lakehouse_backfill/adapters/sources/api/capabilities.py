"""What a source that is an API can do."""

from __future__ import annotations

from lakehouse_backfill.domain.sources.landings import SourceCapabilities

API = SourceCapabilities(
    kind="api", resumes_at="response", range_of="time window", finds_deletions=True
)
