"""Loading declared migrations: `catalog/migrations/NAME.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lakehouse_backfill.config.faults import NamedFiles
from lakehouse_backfill.config.yaml_lines import YamlDocument
from lakehouse_backfill.domain.sources.migration import MigrationDeclaration
from lakehouse_backfill.errors import Fault

MIGRATIONS_FOLDER = Path("catalog/migrations")


def find_migration(project: Path, name: str) -> MigrationDeclaration:
    """Load a migration; raises NotFound with the known names, ConfigError with all faults."""
    files = NamedFiles(
        MIGRATIONS_FOLDER, MigrationDeclaration, _cross_field_faults,
        kind="migration", field="migration", command="lakehouse-backfill product migrate {}",
        page="docs/migration.md", rename="rename the file or the migration",
    )  # fmt: skip
    return files.find(project, name)


def _cross_field_faults(document: YamlDocument) -> Iterator[Fault]:
    places = [name for name in ("parquet", "postgres") if document.get(name) is not None]
    if len(places) != 1:
        found = "both places" if places else "no place"
        yield document.fault(
            ("migration",), f"names {found} to migrate from", "write `parquet:` or `postgres:`"
        )
