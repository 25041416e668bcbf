"""What a source of files can do."""

from __future__ import annotations

from lakehouse_backfill.domain.sources.landings import SourceCapabilities

FILES = SourceCapabilities(
    kind="files", resumes_at="file", range_of="business date", finds_deletions=False
)
