"""A workbench over fakes, and the declarations of a small product."""

from __future__ import annotations

from typing import Any, NoReturn

from lakehouse_backfill.core.planning.plan import DeclaredRun
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import MaskKey
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import ChosenWritePath
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError, NotFound
from tests.support.fakes.catch_up import FakeRowReader
from tests.support.fakes.compute import FakeCompute, SilentJournal, SilentProgress
from tests.support.fakes.control import (
    FakeEvidence,
    FakeRuns,
    FakeVersions,
    Fences,
)
from tests.support.fakes.files import FakeStoredFiles
from tests.support.fakes.hooks import FakeHooks
from tests.support.fakes.identity import NoKey
from tests.support.fakes.lake import FakeLake, FixedClock
from tests.support.fakes.retention import FakeRunFiles
from tests.support.fakes.rollout import (
    FakeCorrections,
    FakeCorrectionTopics,
    FakeVersionTables,
)

PRODUCT = "silver.daily"


def no_repository(commit: str) -> NoReturn:
    """Answer for a project that is in no git repository."""
    raise NotFound(f"there is no git repository that could hold {commit}")


class FakeSecrets:
    """One secret, wherever it is asked for; none when it is empty."""

    def __init__(self, secret: bytes = b"a secret of the tests") -> None:
        self.secret = secret

    def read(self, key: MaskKey) -> bytes:
        if not self.secret:
            raise ConfigError(f"the secret of the masks, {key.place}, is missing", fix="set it")
        return self.secret


class NoTopics:
    """A lake whose tables are no raw tables of topics."""

    def landing(self, table: str, snapshot_id: int) -> None:
        pass


def lake() -> FakeLake:
    """A product of five days, and its source."""
    found = FakeLake()
    found.add("bronze.raw", **{"2020-01-01": "raw-1"})
    days = {f"2020-01-0{number}": f"old-{number}" for number in range(1, 6)}
    found.add(PRODUCT, **days)
    return found


def context(where: FakeLake, compute: FakeCompute | None = None, **changes: Any) -> Context:
    """A workbench whose ports are all fakes."""
    compute, fences = compute or FakeCompute(where), Fences()
    versions = FakeVersions(fences)
    runs = FakeRuns(versions, fences)
    ports: dict[str, Any] = {
        "tables": where, "pins": where, "shadows": where, "publisher": where,
        "row_reader": FakeRowReader(where),
        "run_files": FakeRunFiles(where),
        "runs": runs, "audit": runs, "versions": versions, "evidence": FakeEvidence(fences),
        "compute": lambda: compute, "differ": lambda engine: compute,
        "views": compute, "hooks": FakeHooks(), "identity": NoKey(), "anchor": None,
        "contract": lambda product: contract(),
        "corrections": FakeCorrections(), "correction_topics": FakeCorrectionTopics(),
        "topics": NoTopics(),
        "version_tables": FakeVersionTables(),
        "stored_files": FakeStoredFiles(where),
        "secrets": FakeSecrets(),
        "clock": FixedClock(), "journal": SilentJournal(),
        "progress": SilentProgress(), "profile": Profile(catalog={"name": "lake"}),
        "driver": "here:1", "is_alive": lambda driver: driver != "here:dead",
        "code_hash": lambda file: "c0de", "file_text": lambda file: f"# text of {file}",
        "committed_files": no_repository, "cores": lambda: None,
        "choose_write_path": lambda table, scope: ChosenWritePath(way="pyiceberg", why="a fake"),
    }  # fmt: skip
    return Context(**(ports | changes))


def contract(**changes: Any) -> Contract:
    """The contract of the product."""
    fields: dict[str, Any] = {
        "api_version": "lakehouse-backfill/v1", "product": PRODUCT, "table": PRODUCT,
        "description": "Daily amounts.", "owner": "ana", "key": ["day", "id"],
        "partitioning": [{"column": "day"}],
        "consumers": [], "classification": "internal", "retention_days": 3650,
        "columns": [
            {"name": "day", "type": "date"},
            {"name": "id", "type": "long"},
            {"name": "amount", "type": "long"},
        ],
    }  # fmt: skip
    return Contract.model_validate(fields | changes)


def declared(first: str = "2020-01-02", stop: str = "2020-01-04", **changes: Any) -> DeclaredRun:
    """What the files say: restate some days of the product.

    `run`, `transform`, `target` and each of `sources` name what differs from the fields here.
    """
    fields: dict[str, Any] = {
        "api_version": "lakehouse-backfill/v1",
        "run": {"requested_by": "bob", "reason": "wrong rate", "reason_code": "bug_fix"},
        "product": PRODUCT,
        "transform": {"name": "daily", "version": "1.0.0", "file": "jobs/daily.py"},
        "sources": {
            "raw": {
                "table": "bronze.raw",
                "range": {"column": "day", "from": "2019-12-01", "to": "2020-02-01"},
                "warm_up_days": 1,
            }
        },
        "target": {"partitions": {"column": "day", "from": first, "to": stop}},
        "limits": {"partitions_per_chunk": 1},
        "validation": {"edge_partitions": 1},
    }
    for name in ("run", "transform", "target"):
        fields[name] |= changes.pop(name, {})
    if "sources" in changes:
        known, given = fields["sources"], changes.pop("sources")
        fields["sources"] = {name: known.get(name, {}) | source for name, source in given.items()}
    found_contract = changes.pop("contract", contract())
    return DeclaredRun(
        manifest=RunManifest.model_validate(fields | changes), contract=found_contract,
        manifest_file="m.yaml", code_hash="c0de", git_commit=None, lock_hash=None,
    )  # fmt: skip
