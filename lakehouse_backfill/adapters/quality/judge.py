"""Great Expectations behind the Judge port: one run of a suite file over one read of a frame."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.quality.few_rows import FewRows, quote_column
from lakehouse_backfill.adapters.quality.quiet import quiet_thread
from lakehouse_backfill.adapters.quality.suite_files import LoadedSuite, load_suite
from lakehouse_backfill.adapters.quality.translation import translate_expectation
from lakehouse_backfill.domain.checks import CheckGroup, CheckResult, SuiteEntry
from lakehouse_backfill.domain.guards.privacy import HIDDEN, NOTHING_HIDDEN, Redaction
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

    from lakehouse_backfill.ports.compute import Frame


#: Great Expectations maps these over rows too, but each row's verdict hangs on all the others.
_WHOLE_TABLE_EXPECTATIONS = frozenset(
    {
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
        "expect_column_values_to_be_increasing",
        "expect_column_values_to_be_decreasing",
        # A sort of everything; duplicate keys of a chunk are found by a gate of its own.
        "expect_compound_columns_to_be_unique",
    }
)


def _is_row_expectation(expectation: Expectation, entry: dict[str, Any]) -> bool:
    """Return whether the expectation blocks, and every part of the rows must meet it.

    A value that is there twice in a part is there twice in the whole, so a unique column counts
    too; what need only hold `mostly` does not.
    """
    from great_expectations.expectations.expectation import (
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )

    of_rows = (ColumnMapExpectation, ColumnPairMapExpectation, MulticolumnMapExpectation)
    return (
        isinstance(expectation, of_rows)
        and entry["type"] not in _WHOLE_TABLE_EXPECTATIONS
        and entry["kwargs"].get("mostly", 1) == 1
        and entry.get("severity", "critical") == "critical"
    )


_SUBJECT_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
_LIMIT_ARGUMENTS = ("value_set", "value", "min_value", "max_value", "regex", "type_", "mostly")
_MAX_EXAMPLES = 5


def to_check_result(
    entry: dict[str, Any],
    result: dict[str, Any],
    group: CheckGroup,
    parameters: Mapping[str, Any],
    redaction: Redaction = NOTHING_HIDDEN,
) -> CheckResult:
    """Return one expectation's outcome; `entry` is what the suite file says.

    Of redacted columns, and of expectations that name no column where some are redacted, it holds
    counts and no value.
    """
    if redaction and _may_show_hidden(entry, redaction):
        result = _without_values(result)
    passed = bool(result["success"])
    found = result.get("result") or {}
    return CheckResult(
        name=_check_name(entry),
        group=group,
        passed=passed,
        detail=_exception_text(result)
        or (_pass_detail(found) if passed else _failure_detail(found)),
        observed=to_json_value(_observed_value(found)),
        limit=_declared_limit(entry["kwargs"], parameters),
        blocking=entry.get("severity", "critical") == "critical",
        engine=result.get("engine", ""),
    )


def _subjects(entry: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for argument in _SUBJECT_ARGUMENTS:
        value = entry["kwargs"].get(argument, ())
        found += [value] if isinstance(value, str) else list(value)
    return found


def _may_show_hidden(entry: dict[str, Any], redaction: Redaction) -> bool:
    """Return whether a result may hold redacted values; a row condition names columns too."""
    subjects = _subjects(entry)
    return not subjects or any(map(redaction.hides, subjects))


def _without_values(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with its counts alone; the text of an exception may quote a value."""
    counts = ("element_count", "unexpected_count", "unexpected_percent")
    found = result.get("result") or {}
    kept = {name: found[name] for name in counts if name in found}
    if "observed_value" in found:
        kept["observed_value"] = HIDDEN
    raised = "could not be judged" if _exception_text(result) else None
    exceptions = {"raised_exception": True, "exception_message": "its text is not shown"}
    return {**result, "result": kept, "exception_info": exceptions if raised else {}}


def _check_name(entry: dict[str, Any]) -> str:
    subjects = _subjects(entry)
    if not subjects and entry["kwargs"].get("description"):
        # Queries have no column to tell one from another.
        return str(entry["kwargs"]["description"])
    return f"{entry['type']}({', '.join(subjects)})"


def _exception_text(result: dict[str, Any]) -> str | None:
    raised = result.get("exception_info") or {}
    # One entry, or one by metric.
    entries = [raised] if "raised_exception" in raised else list(raised.values())
    messages = [each["exception_message"] for each in entries if each.get("raised_exception")]
    return f"could not be judged: {str(messages[0]).splitlines()[0]}" if messages else None


def _pass_detail(found: dict[str, Any]) -> str:
    rows = found.get("element_count")
    if rows is None:
        observed = found.get("observed_value")
        return "as expected" if observed is None else f"observed {_short_text(observed)}"
    odd = int(found.get("unexpected_count") or 0)
    return f"{rows} rows" + (f", {odd} unexpected ones within `mostly`" if odd else "")


def _failure_detail(found: dict[str, Any]) -> str:
    if "unexpected_count" not in found:
        return f"observed {_short_text(found.get('observed_value'))}"
    count, rows = found["unexpected_count"], found.get("element_count")
    percent = found.get("unexpected_percent")
    share = f" ({percent:.3g} %)" if isinstance(percent, (int, float)) else ""
    shown = [value for value in found.get("partial_unexpected_list") or [] if value is not None]
    distinct = list(dict.fromkeys(_short_text(value) for value in shown))[:_MAX_EXAMPLES]
    examples = f", e.g. {', '.join(distinct)}" if distinct else ""
    return f"{count} of {rows} rows unexpected{share}{examples}"


def _observed_value(found: dict[str, Any]) -> Any:
    if found.get("element_count") == 0:
        return 0
    return found.get("unexpected_count", found.get("observed_value"))


def _declared_limit(kwargs: dict[str, Any], parameters: Mapping[str, Any]) -> Any:
    limits = {name: kwargs[name] for name in _LIMIT_ARGUMENTS if kwargs.get(name) is not None}
    for name, value in limits.items():
        if isinstance(value, dict) and "$PARAMETER" in value:
            given = parameters[value["$PARAMETER"]]
            size = f" ({len(given)} values)" if isinstance(given, (list, tuple, set)) else ""
            limits[name] = f"{value['$PARAMETER']}{size}"
    return to_json_value(limits) or None


def _short_text(value: Any) -> str:
    text = str(to_json_value(value))
    return text if len(text) <= 120 else f"{text[:117]}…"


_GX_MODULE = "great_expectations"
# What it imports of Spark, and takes as not installed when that import fails.
_SPARK_MODULES = ("pyspark.sql", "pyspark.ml.feature", "pyspark.sql.connect.session")
_IMPORT_THREADS: list[Thread] = []
#: What it imports for a few expectations, and for pages of results: a third of its time.
_LATE_MODULES = frozenset({"altair", "scipy.stats"})


class _LateFinder:
    """Finder for imports that lets a late module be loaded when something of it is first used."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, *_: Any) -> ModuleSpec | None:
        if name not in _LATE_MODULES:
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found


def _import_gx() -> None:
    sys.meta_path.insert(0, _LateFinder)
    try:
        import_module(_GX_MODULE)
    finally:
        sys.meta_path.remove(_LateFinder)


class ExpectationsJudge:
    """Runs suite files; paths are inside the project.

    Nothing leaves the machine: no usage statistics, an ephemeral context, nothing written.
    `trusted` is entered while suites run: Great Expectations asks Spark for a session in ways that
    the code of a job may not, and that code may run at the same time on another thread.
    """

    def __init__(
        self, project: Path, trusted: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._project = project
        self._trusted = trusted

    def judge(
        self,
        frame: Frame,
        suite_file: str,
        parameters: dict[str, list[Any]],
        group: CheckGroup,
        redaction: Redaction = NOTHING_HIDDEN,
    ) -> tuple[CheckResult, ...]:
        """Run a suite file on a frame: one result per expectation; raises ConfigError.

        Only the columns that the suite names are read, once. Expectations of severity `warning`
        or `info` do not block.
        """
        return self.judge_all(frame, ((suite_file, parameters),), group, redaction)

    def entries(
        self, suite_file: str, parameters: dict[str, list[Any]], types: Mapping[str, str]
    ) -> tuple[SuiteEntry, ...]:
        """Return the expectations of a suite file, with what can be counted; raises ConfigError.

        Nothing is read. `types` are Iceberg's types of all columns, by name.
        """
        with _quiet_library():
            suite = load_suite(self._project / suite_file, parameters, tuple(types))
            return tuple(
                SuiteEntry(
                    number=number,
                    name=_check_name(entry),
                    rule=translate_expectation(entry, parameters, types),
                    is_of_rows=_is_row_expectation(expectation, entry),
                    limit=_declared_limit(entry["kwargs"], parameters),
                )
                for number, (expectation, entry) in enumerate(suite.expectations)
            )

    def judge_entries(
        self,
        frame: Frame,
        suite_file: str,
        parameters: dict[str, list[Any]],
        chosen: Sequence[int],
        group: CheckGroup,
        redaction: Redaction = NOTHING_HIDDEN,
    ) -> dict[int, CheckResult]:
        """Run some expectations of a suite file on a frame; give the results by their number."""
        with _quiet_library(), self._trusted():
            columns = tuple(frame.columns)
            suite = load_suite(self._project / suite_file, parameters, columns)
            part = replace(suite, expectations=tuple(suite.expectations[one] for one in chosen))
            # For single rows few jobs over plain files are enough: nothing is cached.
            selected = _select_columns(frame, part.columns_to_read(columns))
            few = FewRows.of(selected) if chosen else None
            results = _judge_suite(part, selected, parameters, group, redaction, few)
            return dict(zip(chosen, results, strict=True))

    def judge_all(
        self,
        frame: Frame,
        suites: tuple[tuple[str, dict[str, list[Any]]], ...],
        group: CheckGroup,
        redaction: Redaction = NOTHING_HIDDEN,
        rows: int | None = None,
    ) -> tuple[CheckResult, ...]:
        """Run several suite files, each with its parameters, over one read of a frame.

        Only the columns that they name are read, once, and nothing stays cached. `rows` is about
        how many there are: many are not fetched to see whether they are few. Raises ConfigError
        for a faulty suite before anything is read.
        """
        with _quiet_library(), self._trusted():
            columns = tuple(frame.columns)
            loaded = [
                (load_suite(self._project / file, given, columns), given) for file, given in suites
            ]
            named = {name for suite, _ in loaded for name in suite.columns_to_read(columns)}
            selected = _select_columns(frame, tuple(name for name in columns if name in named))
            # Great Expectations starts several Spark jobs: cached, the plan behind the frame
            # (files, joins) runs once.
            selected.persist()
            try:
                few = FewRows.of(selected, rows)
                return tuple(
                    check
                    for suite, given in loaded
                    for check in _judge_suite(suite, selected, given, group, redaction, few)
                )
            finally:
                selected.unpersist()


def _judge_suite(
    suite: LoadedSuite,
    frame: Frame,
    parameters: dict[str, list[Any]],
    group: CheckGroup,
    redaction: Redaction,
    few: FewRows | None,
) -> tuple[CheckResult, ...]:
    """Judge all on a frame; what has the same verdict there, on its `few` rows with pandas."""
    entries = [entry for _, entry in suite.expectations]
    near = [at for at, one in enumerate(entries) if few and few.judges(one, parameters)]
    far = [at for at in range(len(entries)) if at not in near]
    results: dict[int, dict[str, Any]] = {}
    if near and few:
        results = _run_near(suite, near, few, parameters)
    if far:
        results |= _run_expectations(suite, far, frame, parameters, 0)
    # Fetching examples costs a Spark job each, so only those that failed are asked.
    failed = [at for at in far if not results[at]["success"]]
    if failed:
        results |= _run_expectations(suite, failed, frame, parameters, _MAX_EXAMPLES)
    return tuple(
        to_check_result(entry, results[at], group, parameters, redaction)
        for at, entry in enumerate(entries)
    )


def _run_near(
    suite: LoadedSuite, chosen: Sequence[int], few: FewRows, parameters: dict[str, Any]
) -> dict[int, dict[str, Any]]:
    near = replace(
        suite, expectations=tuple((few.rewritten(one), entry) for one, entry in suite.expectations)
    )
    found = _run_expectations(near, chosen, few.frame, few.parameters(parameters), _MAX_EXAMPLES)
    for at, result in found.items():
        result["engine"] = "pandas"
        examples = (result.get("result") or {}).get("partial_unexpected_list")
        if examples:
            shown = few.shown(suite.expectations[at][1], examples)
            result["result"]["partial_unexpected_list"] = shown
    return found


def _select_columns(frame: Frame, columns: tuple[str, ...]) -> Frame:
    return frame.select(*map(quote_column, columns))


def load_expectations() -> None:
    """Load Great Expectations, and what it needs of PySpark, on the caller's thread."""
    _load_spark_modules()
    with _quiet_library():
        pass


def _load_spark_modules() -> None:
    for module in _SPARK_MODULES:
        # Spark Connect needs packages that are not always installed.
        with suppress(ImportError):
            import_module(module)


def start_gx_import() -> None:
    """Begin to import Great Expectations (seconds) in the background, e.g. while Spark starts.

    The modules of PySpark import each other in circles: two threads that import them at a time
    get halves of them. So what both need of it is imported first, on the caller's thread.
    """
    if not _IMPORT_THREADS:
        _load_spark_modules()
        _IMPORT_THREADS.append(Thread(target=_import_gx, name="import-gx", daemon=True))
        _IMPORT_THREADS[0].start()


def _run_expectations(
    suite: LoadedSuite,
    chosen: Sequence[int],
    frame: Any,
    parameters: dict[str, Any],
    examples: int,
) -> dict[int, dict[str, Any]]:
    """Judge the chosen expectations on a frame of Spark or pandas; gives results by number."""
    import great_expectations as gx
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    sources = context.data_sources
    near = isinstance(frame, pd.DataFrame)
    source: Any = (
        sources.add_pandas("pandas") if near else sources.add_spark("spark", persist=False)
    )
    batch = source.add_dataframe_asset("frame").add_batch_definition_whole_dataframe("whole")
    wanted = gx.ExpectationSuite(name=suite.name)
    for number in chosen:
        expectation = suite.expectations[number][0].copy(deep=True)
        # Results come back grouped by column; the number says which expectation each one is.
        expectation.meta = {**(expectation.meta or {}), "lhb_number": number}
        wanted.expectations.append(expectation)
    definition = gx.ValidationDefinition(name=suite.name, data=batch, suite=wanted)
    context.suites.add(wanted)
    outcome = definition.run(
        batch_parameters={"dataframe": frame},
        expectation_parameters=parameters,
        result_format={"result_format": "BASIC", "partial_unexpected_count": examples},
    )
    plain: list[dict[str, Any]] = [result.to_json_dict() for result in outcome.results]
    numbers = [each["expectation_config"]["meta"]["lhb_number"] for each in plain]
    found = dict(zip(numbers, plain, strict=True))
    if set(found) != set(chosen):
        raise ConfigError(
            f"Great Expectations judged {len(found)} of {len(chosen)} expectations of {suite.name}",
            fix="remove expectations that stand twice in the suite",
        )
    return found


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Keep Great Expectations from writing to the terminal and from counting its users.

    Waits for the import that was begun: half a library knows no expectations.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with quiet_thread(_GX_MODULE):
        for thread in _IMPORT_THREADS:
            thread.join()
        _import_gx()
        yield
