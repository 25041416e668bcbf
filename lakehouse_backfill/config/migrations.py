"""Loading declared migrations: `catalog/migrations/NAME.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lakehouse_backfill.config import yaml_lines
from lakehouse_backfill.config.faults import closest_name, display_path, load_model, suggest_name
from lakehouse_backfill.config.yaml_lines import YamlDocument, raise_faults
from lakehouse_backfill.domain.sources.migration import MigrationDeclaration
from lakehouse_backfill.errors import Fault, NotFound

MIGRATIONS_FOLDER = Path("catalog/migrations")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def find_migration(project: Path, name: str) -> MigrationDeclaration:
    """Load a migration; raises NotFound with the known names, ConfigError with all faults."""
    known = tuple(sorted(path.stem for path in (project / MIGRATIONS_FOLDER).glob("*.yaml")))
    # The name becomes part of a path, so it is checked before a path is made of it.
    if not _NAME.fullmatch(name) or name not in known:
        near = closest_name(name, known)
        raise NotFound(
            f"there is no migration {name!r} in {MIGRATIONS_FOLDER.as_posix()}; "
            f"{suggest_name(name, list(known))}",
            fix=f"lakehouse-backfill product migrate {near}"
            if near
            else f"declare it in {MIGRATIONS_FOLDER.as_posix()}/{name}.yaml: see docs/migration.md",
        )
    path = project / MIGRATIONS_FOLDER / f"{name}.yaml"
    declared = load_model(MigrationDeclaration, path, project, _cross_field_faults)
    if declared.migration != name:
        file = display_path(path, project)
        document = yaml_lines.load_yaml(path, file)
        problem = f"is {declared.migration}, but the file is called {name}.yaml"
        fix = "rename the file or the migration"
        raise_faults(file, [document.fault(("migration",), problem, fix)])
    return declared


def _cross_field_faults(document: YamlDocument) -> Iterator[Fault]:
    places = [name for name in ("parquet", "postgres") if document.get(name) is not None]
    if len(places) != 1:
        found = "both places" if places else "no place"
        yield document.fault(
            ("migration",), f"names {found} to migrate from", "write `parquet:` or `postgres:`"
        )
