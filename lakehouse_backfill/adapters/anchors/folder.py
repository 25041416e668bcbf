"""An anchor in a folder: one file for each record, which is created and never opened for writing.

Only the rights of the folder keep the publisher from changing files: another owner and the sticky
bit, `chattr +a`, or a share that allows new files only.
"""

from __future__ import annotations

from pathlib import Path

from lakehouse_backfill.domain.identity.anchor import AnchorRecord
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import EnvironmentDown, Tampered
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.identity import Anchor

_SUFFIX = ".json"


class FolderAnchor(Anchor):
    """`ports.identity.Anchor` in a folder, which has to exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"the folder {self._folder}"

    def keep(self, record: AnchorRecord) -> None:
        """Write a record; one of the same name stays as it is. Raises EnvironmentDown."""
        file = self._folder / f"{record.name}{_SUFFIX}"
        try:
            with commit_window("Anchor.keep"), file.open("x", encoding="utf-8") as text:
                text.write(canonical_json(record))
        except FileExistsError:
            return
        except OSError as error:
            raise self._error(error) from error

    def names(self) -> frozenset[str]:
        """Return the names of all records; raises EnvironmentDown."""
        return frozenset(file.name.removesuffix(_SUFFIX) for file in self._files())

    def records(self) -> tuple[AnchorRecord, ...]:
        """Return all records; raises EnvironmentDown, and Tampered for one that is no record."""
        return tuple(_read_record(file) for file in self._files())

    def _files(self) -> list[Path]:
        try:
            return sorted(file for file in self._folder.iterdir() if file.suffix == _SUFFIX)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> EnvironmentDown:
        return EnvironmentDown(
            f"the anchor in {self.place} cannot be used: {error.strerror}",
            fix="create the folder, or correct anchor.folder in catalog/profiles.yaml",
        )


def _read_record(file: Path) -> AnchorRecord:
    try:
        record = AnchorRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Tampered(f"{file} is no record of an anchor: {type(error).__name__}") from error
    if record.name != file.name.removesuffix(_SUFFIX):
        raise Tampered(f"{file} holds the record of {record.name}")
    return record
