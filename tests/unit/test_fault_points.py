"""Where a process may die is named, and no side effect is left out."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard, get_type_hints

import pytest

import lakehouse_backfill
from lakehouse_backfill import fault_points, ports
from lakehouse_backfill.adapters.iceberg.control.schemas import CONTROL_TABLES
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.fault_points import commit_window, side_effect, watch_ports
from lakehouse_backfill.ports.compute import ComputePorts
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.examples import declarations

PACKAGE = Path(lakehouse_backfill.__file__).parent

#: Port methods that change nothing outside the process, and so need no fault point.
READING = {
    "ChangeAttributor": {"swap"},
    "Anchor": {"names", "records"},
    "Audit": {
        "bad_documents",
        "bad_plans",
        "chains",
        "count_orphans",
        "describe_runs",
        "drafts",
        "pending_deletions",
        "products",
        "recorded_runs",
        "rejected_counts",
        "rejected_groups",
        "seal",
    },
    "Clock": {"now", "sleep"},
    "CorrectionTopics": {"look", "state"},
    "Corrections": {"events_of", "find"},
    "Differ": {"diff", "diff_and_sum", "differing", "preview"},
    "EventTopics": {"sent"},
    "EventReader": {"aggregate_events", "first_since", "head", "holds", "open"},
    # A spill of the process.
    "EventSet": {
        "batches",
        "behind",
        "close",
        "findings",
        "keep_states",
        "ledger_faults",
        "select",
        "selected",
        "states",
    },
    "Evidence": {"active_leases", "all_of", "document", "find_fingerprints", "newest", "newest_of"},
    "HandlerTables": {"handled", "newest_state", "state", "step_rows"},
    "Hooks": set(),
    "Identity": {"check", "describe", "has_signer", "sign"},
    "ImportLedger": {"deliveries"},
    "Inspecting": {"breaking", "chunk", "periods"},
    "Journal": {"bind", "log", "span"},
    "LandedTopics": {"events", "landing"},
    # Files and servers of the metrics; nothing of the lake.
    "MetricsOutput": {"push", "serve", "text", "write"},
    "Judge": {"entries", "judge", "judge_all", "judge_entries"},
    "Measuring": {
        "by_file",
        "checksums",
        "distinct",
        "frame",
        "input",
        "masked",
        "measure",
        "source_totals",
    },
    "RunFiles": {"describe", "find"},
    "Pins": {"pinned", "preview_expiry", "tags", "unsafe_expiries"},
    # Parts of the acts of other ports, which have the points.
    "CloneCommitter": {"fence", "set_columns", "write_clone"},
    "MigratedTables": {"branch_snapshot", "foreign_snapshot", "state", "sums"},
    "OldPlace": {"added", "batches", "changed", "survey"},
    "PayloadSchemas": {"decode", "find", "known", "protobuf_fields"},
    "Progress": {"advance", "count", "finish", "say", "start", "within"},
    "Publisher": {
        "changes",
        "drifts",
        "find",
        "rewrites",
        "prove",
        "preview",
        "require_one_commit",
    },
    "RawTables": {"deliveries", "pinned", "rows", "schemas", "state"},
    "ReplayLedger": {"has"},
    "RowReader": {"by_key", "compare_query", "deleted_rows", "golden", "tombstoned_rows"},
    "RowSums": {"add", "groups"},
    "RowRewriter": {"require_equal"},
    "Runs": {"chunks", "code_of", "events", "fenced", "list", "plan", "recorded", "status"},
    "Secrets": {"read"},
    "Shadows": {"capabilities", "chunks", "list"},
    "SourcePart": {"batches", "landed", "rejected"},
    "SourceReader": {"checkpoints", "survey"},
    "Staging": {
        "analysed_plan",
        "application",
        "begin_edges",
        "beside",
        "edge_checksums",
        "edges",
        "intermediates",
        "interrupt",
        "load",
        "prove_determinism",
        "prove_warm_up",
        "rejects",
        "remeasure",
        "tables_read",
    },
    "SwapCommitter": {"prepare", "set_tag"},
    "TableCommitter": {"expire"},
    "StoredFiles": {"digests", "files", "metadata", "reading", "sizes"},
    "Tables": {
        "column_spans",
        "committed_at",
        "describe",
        "estimate",
        "files",
        "key_bounds",
        "movements",
        "resolve",
        "scope_field",
        "scoped",
        "positions",
        "marks",
    },
    "TableCopies": {"real_metadata", "require_other_lake"},
    "VersionTables": {"fault", "require_fit"},
    "Versions": {"history", "of_table", "pending", "pointer", "pointers", "whole_pointer"},
    "Views": set(),
    "Workers": {"cogroup", "count", "run_all", "scan"},
}

#: Calls of PyIceberg that change a catalog or a file of a table.
ICEBERG_COMMITS = {
    "_commit_branches",
    "_do_commit", "commit_table", "commit_transaction", "create_namespace",
    "create_namespace_if_not_exists", "create_table", "drop_namespace", "drop_table",
    "manage_snapshots", "purge_table", "register_table", "rename_table", "table_metadata",
    "update_schema", "update_spec", "update_sort_order",
}  # fmt: skip
#: Calls of Spark that write: the DataFrame writers, and statements that make something.
SPARK_WRITES = {
    "append", "createOrReplace", "insertInto", "overwrite", "overwritePartitions", "saveAsTable",
}  # fmt: skip
#: `doctor` writes a throw-away table to try the catalog out; nothing depends on it.
TRIALS = {"_CapabilityProbe", "probe_capabilities"}
#: What hands a commit on: those who call it stand between two points, as the commits they call.
HANDED_ON = {"BranchTable", "_commit_branches", "take_out"}


def protocols() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(ports.__path__):
        loaded = importlib.import_module(f"{ports.__name__}.{module.name}")
        found |= {
            name: value
            for name, value in inspect.getmembers(loaded, inspect.isclass)
            if value.__module__ == loaded.__name__ and getattr(value, "_is_protocol", False)
        }
    return found


@pytest.mark.req("T3")
def test_every_port_method_has_a_fault_point_or_is_known_to_read_only() -> None:
    unmarked = {
        name: {
            method
            for method, value in vars(protocol).items()
            if inspect.isfunction(value) and not method.startswith("_")
        }
        - fault_points.side_effect_methods(protocol)
        for name, protocol in protocols().items()
    }
    assert unmarked == READING


@pytest.mark.req("T3")
def test_wiring_watches_every_port_that_has_side_effects(passed: list[str], tmp_path: Path) -> None:
    assert passed == []
    wiring = Adapters.open(declarations.project(tmp_path), None, None)
    wiring.create_lake()
    asked = {
        field: getattr(getattr(wiring.context, field), "protocol", None) is protocol
        for field, protocol in get_type_hints(Context).items()
        if isinstance(protocol, type) and fault_points.side_effect_methods(protocol)
    }
    assert asked == dict.fromkeys(
        ("tables", "pins", "shadows", "publisher", "runs", "audit", "versions", "evidence",
         "views", "corrections", "correction_topics", "hooks", "run_files", "version_tables"),
        True,
    )  # fmt: skip


def test_without_a_hook_the_ports_are_not_watched(tmp_path: Path) -> None:
    wiring = Adapters.open(declarations.project(tmp_path), None, None)
    wiring.create_lake()
    assert not hasattr(wiring.context.publisher, "protocol")


def test_wiring_hands_out_no_ports_of_an_engine_that_are_not_watched() -> None:
    tree = ast.parse(
        inspect.getsource(importlib.import_module("lakehouse_backfill.wiring.adapters"))
    )
    made = [
        f
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef) and f.name == "_make_compute_ports"
    ]
    given = [node.value for node in ast.walk(made[0]) if isinstance(node, ast.Return)]
    assert [ast.unparse(value).partition("(")[0] for value in given if value] == [
        "watch_ports_if_hooked"
    ]
    assert fault_points.side_effect_methods(get_type_hints(ComputePorts)["staging"]) == {
        "keep_intermediates",
        "restore",
        "stage",
    }


@pytest.mark.req("T3")
@pytest.mark.parametrize(
    ("folder", "commits"), [("adapters/iceberg", ICEBERG_COMMITS), ("adapters/spark", SPARK_WRITES)]
)
def test_every_commit_stands_between_two_fault_points(folder: str, commits: set[str]) -> None:
    bare = [
        f"{file.name}:{call.lineno}: {ast.unparse(call.func)}"
        for file in sorted((PACKAGE / folder).rglob("*.py"))
        for call in _bare(ast.parse(file.read_text(encoding="utf-8")), commits)
        if not _is_known(call)
    ]
    assert bare == []


def _is_known(call: ast.Call) -> bool:
    """Tell whether the call is no commit: of a list, a reader, or a class that commits itself."""
    text = ast.unparse(call.func)
    if text.endswith(".append"):
        return ".writeTo(" not in text
    return text in (
        "self._writer.overwrite", "self.overwrite", "transaction.update_snapshot().overwrite",
        "FromInputFile.table_metadata",
        # A catalog that is a catalog of PyIceberg: its callers hold it.
        "super().commit_table", "RestCatalog.commit_table",
    )  # fmt: skip


def _bare(tree: ast.AST, commits: set[str], *, covered: bool = False) -> Iterator[ast.Call]:
    """Find the calls of `commits` that stand in no `with commit_window(...)`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in TRIALS | HANDED_ON:
            continue
        inside = covered
        if isinstance(node, ast.With):
            heads = [item.context_expr for item in node.items]
            inside |= any(_name(head) == "commit_window" for head in heads)
        if not inside and _is_method(node) and _name(node) in commits:
            yield node
        yield from _bare(node, commits, covered=inside)


def _is_method(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def _name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def test_the_points_of_the_adapters_are_those_that_are_listed() -> None:
    files = (file for file in PACKAGE.rglob("*.py") if file.name != "fault_points.py")
    texts = [file.read_text(encoding="utf-8") for file in files]
    used = {name for text in texts for name in re.findall(r'\bcommit_window\("([^"]+)"\)', text)}
    logs = {f"ControlLog.{table.name}" for table in CONTROL_TABLES}
    listed = set(fault_points.COMMIT_POINTS)
    assert used | {name for name in listed if name.startswith("ControlLog.")} == listed
    assert {name for name in listed if name.startswith("ControlLog.")} <= logs


class Doing:
    def work(self, what: str) -> str:
        if what == "wrong":
            raise ValueError(what)
        return f"{what} done"

    def look(self) -> str:
        return "seen"


class Working:
    @side_effect
    def work(self, what: str) -> str: ...

    def look(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Holder:
    port: Working
    other: str = "kept"


@pytest.fixture
def passed() -> Iterator[list[str]]:
    found: list[str] = []
    fault_points.install_hook(found.append)
    yield found
    fault_points.install_hook(None)
    fault_points._SIDE_EFFECT_METHODS.pop("Working.work", None)


def test_a_watched_port_does_what_the_port_does_and_says_when(passed: list[str]) -> None:
    fault_points._SIDE_EFFECT_METHODS["Working.work"] = None
    held = watch_ports(Holder(Doing()))
    assert (held.port.work("it"), held.port.look(), held.other) == ("it done", "seen", "kept")
    with pytest.raises(ValueError, match="wrong"):
        held.port.work("wrong")
    assert passed == ["Working.work:before", "Working.work:after", "Working.work:before"]


def test_a_commit_that_failed_is_not_said_to_be_committed(passed: list[str]) -> None:
    with pytest.raises(OSError), commit_window("A.b"):
        raise OSError
    with commit_window("A.c"):
        pass
    assert passed == ["A.b:committing", "A.c:committing", "A.c:committed"]


def test_without_a_hook_nothing_happens_and_nothing_but_code_installs_one() -> None:
    with commit_window("A.b"):
        fault_points.reach_point("A.c:before")
    source = inspect.getsource(fault_points)
    assert not re.search(r"\bos\b|environ\b|getenv", source)
    installs = [
        file.name
        for file in PACKAGE.rglob("*.py")
        if re.search(r"fault_points\.install|import install", file.read_text(encoding="utf-8"))
    ]
    assert installs == []


def test_the_recovery_page_says_what_happens_at_each_point() -> None:
    protocols()
    text = (PACKAGE.parent / "docs" / "recovery.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 7]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+\.\w+)`", row[3])}
    assert named == {point.rpartition(":")[0] for point in fault_points.all_points()}
