"""Loads the transform that a plan names, from a Python or SQL file of the project.

Job files are scanned for forbidden names before any of their code runs. A job's own modules are
imported from the folder of its code only.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from lakehouse_backfill.adapters.spark.dataframes import sql_argument
from lakehouse_backfill.adapters.spark.guard import driver_guard
from lakehouse_backfill.adapters.spark.guard.job_source import check_job_source
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.spark_errors import (
    job_failed,
    name_job_folder,
)
from lakehouse_backfill.adapters.spark.staging.intermediates import Intermediate
from lakehouse_backfill.core.guards.queries import NotAQuery, parse_query, referenced_tables
from lakehouse_backfill.domain.labels.values import Bound, NamedRange
from lakehouse_backfill.domain.manifest import ConfigValue, RowPredicate, TransformRef
from lakehouse_backfill.errors import (
    BackfillError,
    ConfigError,
    NotFound,
    WriteForbidden,
    hides_texts,
)
from lakehouse_backfill.transforms import (
    IntermediateInfo,
    TransformInfo,
    intermediate_info,
    sql_header,
    transform_info,
)

#: By folder: the modules that were imported from it, by name.
_modules_by_folder: dict[Path, dict[str, ModuleType]] = {}


@contextmanager
def job_imports(folder: Path, job: Path) -> Iterator[None]:
    """Import modules from `folder` and the job's folder before all others, in this block.

    A process may load two versions of one job, whose modules have the same names: no module stays
    in `sys.modules` after the block.
    """
    folders = [str(folder), str(job.parent)]
    own = _modules_by_folder.setdefault(folder, {})
    names = _importable_names(folder, job)
    driver_guard.add_own_modules(names)
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    known = set(sys.modules)
    sys.modules.update(own)
    sys.path[:0] = folders
    try:
        with _pickling_by_value(names):
            yield
    finally:
        # Packages without a file find their paths in sys.path: read them before it changes.
        imported = _imported(folder, known)
        for path in folders:
            sys.path.remove(path)
        for name, module in imported.items():
            if name not in own:
                # Executors do not have its file.
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
            own[name] = module
            del sys.modules[name]
        sys.modules.update(hidden)


def _importable_names(folder: Path, job: Path) -> set[str]:
    """Return the names of the folder's modules, and of their packages."""
    names: set[str] = set()
    for root in (folder, job.parent):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            names |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return names


def _imported(folder: Path, known: set[str]) -> dict[str, ModuleType]:
    """Return the modules and packages of the folder that are not `known`, except jobs."""
    return {
        name: module
        # Iterating over the items is not atomic: other threads may import at the same time.
        for name, module in sys.modules.copy().items()
        if name not in known
        and not name.startswith("lakehouse_backfill_job_")
        and _is_in_folder(module, folder)
    }


def _is_in_folder(module: ModuleType, folder: Path) -> bool:
    try:
        file = getattr(module, "__file__", None)
        locations = [file] if file else list(module.__path__)
    except (AttributeError, KeyError, TypeError):
        return False
    # A package without a file may also have a part in the working directory. Texts are compared:
    # thousands of modules are looked at, and their paths begin with the entry of `sys.path`.
    root = str(folder)
    texts = [str(location) for location in locations if location is not None]
    return any(text == root or text.startswith(root + os.sep) for text in texts)


@contextmanager
def _pickling_by_value(names: set[str]) -> Iterator[None]:
    """Pickle modules that the block imports by value in tasks that the same block makes.

    The public function takes a module, not a name, so it cannot register a module before its
    import. All importable names are therefore registered first, and removed after the block.
    """
    registry: set[str] = cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES
    new = names - registry
    registry |= new
    try:
        yield
    finally:
        registry -= new


#: Under this name the frames of a stateful transform hold its state; no input is called so.
STATE_FRAME = "(state)"


class JobSinks(Protocol):
    """What `context.sink(name)` of a transform leads to."""

    def refusal(self, name: str) -> str:
        """Return why a message to the sink is refused; empty when its policy lets it pass."""
        ...

    def send(self, name: str, key: str, payload: Mapping[str, Any]) -> Any:
        """Act on a message as the run's policy says; return the answer of a mocked sink."""
        ...


class JobSink:
    """A declared sink, as a transform sees it on the driver."""

    def __init__(self, name: str, sinks: JobSinks | None) -> None:
        self._name = name
        self._sinks = sinks

    def __reduce__(self) -> tuple[Any, ...]:
        raise self._unreachable()

    def _unreachable(self) -> WriteForbidden:
        return WriteForbidden(
            f"no message can be sent to the sink {self._name} from here",
            state="nothing was sent",
            fix="send it in the transform itself, not in a function that runs in a worker",
        )

    def send(self, key: str, payload: Mapping[str, Any]) -> Any:
        """Send a message as the run's policy says; return the answer of a mocked sink, else None.

        `key` names what the message is about: the same key is the same message. Raises
        WriteForbidden, before anything is sent, when the policy is `forbid`, in a worker, or for
        the value of a secret.
        """
        if self._sinks is None:
            raise self._unreachable()
        if refusal := self._sinks.refusal(self._name):
            driver_guard.stop(self._name, refusal)
        text = f"{key} {json.dumps(payload, ensure_ascii=False, default=str)}"
        driver_guard.require_no_secret(self._name, text)
        with driver_guard.trusted(), write_guard.allow_own_writes():
            return self._sinks.send(self._name, key, payload)


@dataclass(frozen=True)
class JobContext:
    """What a transform gets besides its inputs; equal for equal plans, so runs are repeatable.

    `clock` is the run's time, never the wall clock. `publish_from`/`publish_to` bound the computed
    partitions (half-open); None where partitions have no order. `row_predicate` names the only
    rows that are wanted, column by column; it is empty where all are. `scratch` is the one folder
    in which the code may write files: of the process on the driver, of the executor in a worker.
    """

    run_id: str
    mode: str
    clock: datetime
    transform_version: str
    config: Mapping[str, ConfigValue]
    publish_from: Bound | None = None
    publish_to: Bound | None = None
    reference_versions: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    config_hash: str = ""
    row_predicate: RowPredicate = field(default_factory=lambda: MappingProxyType({}))
    scratch: str = field(default="", compare=False)
    sinks: JobSinks | None = field(default=None, compare=False, repr=False)

    def sink(self, name: str) -> JobSink:
        """Return a sink of the contract; the run manifest decides what sending to it does."""
        return JobSink(name, self.sinks)

    def __getstate__(self) -> dict[str, Any]:
        # Functions that run in workers may use the values, but reach no sink.
        return {**vars(self), "sinks": None}


@dataclass(frozen=True)
class Job:
    """A loaded transform: `run` computes the output from the frames of its inputs, lazily."""

    info: TransformInfo
    file: str
    compute: Callable[[JobContext, Mapping[str, Any]], Any]
    #: Folder of its code; None for SQL.
    folder: Path | None = None
    #: Where the function begins.
    line: int = 1
    #: Those of its file that it takes as inputs.
    intermediates: tuple[Intermediate, ...] = ()

    def run(
        self, context: JobContext, frames: Mapping[str, DataFrame]
    ) -> tuple[DataFrame, DataFrame | None]:
        """Call the transform under the guards; return its rows, and the state of one that has one.

        Raises WriteForbidden when it tries to write or to reach outside, ConfigError when it fails
        or does not return a DataFrame for each. Nothing is written in either case.
        """

        def compute() -> Any:
            # Only Python code has files.
            scratch = driver_guard.scratch_folder() if self.folder else context.scratch
            return self.compute(replace(context, scratch=scratch), frames)

        found = self._call(f"transform {self.info.name}", compute, 2 if self.info.state else 1)
        return found[0], found[1] if self.info.state else None

    def run_intermediate(
        self, wanted: Intermediate, config: Mapping[str, Any], frames: Mapping[str, DataFrame]
    ) -> DataFrame:
        """Call the function of an intermediate result as `run` calls the transform."""
        name = f"intermediate result {wanted.info.name}"
        return self._call(name, lambda: wanted.compute(config, frames))[0]

    def _call(self, what: str, compute: Callable[[], Any], count: int = 1) -> tuple[DataFrame, ...]:
        try:
            with ExitStack() as guards:
                guards.enter_context(write_guard.forbid_job_writes())
                if self.folder is not None:
                    guards.enter_context(driver_guard.watch_job(self.folder))
                output = compute()
                made = output if count > 1 and isinstance(output, tuple) else (output,)
                for frame in (one for one in made if hasattr(one, "writeTo")):
                    # Spark Connect analyses a frame only when its schema is read.
                    _ = frame.schema
        except BackfillError:
            raise
        except Exception as error:
            failed = job_failed(f"{what} failed", self.file, error)
            if hides_texts():
                raise failed from None
            raise failed from error
        if len(made) != count or not all(hasattr(one, "writeTo") for one in made):
            wanted = "a DataFrame" if count == 1 else "two DataFrames, its rows and its state"
            raise ConfigError(
                f"{what} gave {type(output).__name__} instead of {wanted}",
                state="nothing was written",
                fix=f"return {wanted} in {self.file}",
            )
        return made

    def require_no_attempts(self) -> None:
        """Raise WriteForbidden for outside effects that threads of the job tried after `run`."""
        if self.folder is not None:
            driver_guard.require_no_attempts(self.folder)


def load_job(spark: SparkSession, project: Path, wanted: TransformRef, inputs: set[str]) -> Job:
    """Load the transform with the `wanted` name and version; it may use only declared `inputs`.

    Raises NotFound without the file, ConfigError when the file does not contain the transform or
    uses names that are forbidden in jobs.
    """
    path = _job_path(project, wanted.file)
    name_job_folder(project.resolve())
    text = path.read_text(encoding="utf-8")
    is_python = path.suffix == ".py"
    if not is_python and path.suffix != ".sql":
        raise ConfigError(f"{wanted.file} is neither .py nor .sql", fix="correct transform.file")
    jobs = (
        _python_jobs(project.resolve(), path, wanted.file, text)
        if is_python
        else _sql_jobs(spark, wanted.file, text)
    )
    job = next(
        (j for j in jobs if (j.info.name, j.info.version) == (wanted.name, wanted.version)), None
    )
    if job is None:
        offered = ", ".join(f"{j.info.name} {j.info.version}" for j in jobs) or "no transform"
        raise ConfigError(
            f"{wanted.file} does not hold transform {wanted.name} {wanted.version}",
            fix=f"it offers {offered}: correct transform.name or transform.version",
        )
    made = {one.info.name for one in job.intermediates}
    if twice := sorted(made & inputs):
        raise ConfigError(
            f"{', '.join(twice)}: an input of the run, and an intermediate result of {wanted.file}",
            fix="give one of them another name",
        )
    missing = [name for name in job.info.inputs if name not in inputs | made]
    if missing:
        raise ConfigError(
            f"transform {wanted.name} needs inputs that the manifest lacks: {', '.join(missing)}",
            fix="declare them under sources or reference_data",
        )
    return job


def _job_path(project: Path, file: str) -> Path:
    root = project.resolve()
    path = (root / file).resolve()
    if not path.is_relative_to(root):
        raise ConfigError(f"{file} lies outside the project", fix="move the job into the project")
    if not path.is_file():
        raise NotFound(f"there is no job file {file}", fix="correct transform.file")
    return path


def _python_jobs(root: Path, path: Path, file: str, text: str) -> list[Job]:
    check_job_source(text, file)
    with job_imports(root, path):
        module = _import_job_module(root, path, file, text)
    values, code = list(vars(module).values()), (root, path)
    found = {id(value): (value, each) for value in values if (each := intermediate_info(value))}
    made = {
        each.name: Intermediate(each, _compute_with_imports(value, each, code))
        for value, each in found.values()
    }
    if len(made) < len(found):
        problem = f"{file} holds two intermediate results of one name"
        raise ConfigError(problem, fix="give one of them another name")
    return [
        Job(
            info, file, _compute_with_imports(value, info, code), root, _line_of(value),
            tuple(made[name] for name in info.inputs if name in made),
        )
        for value in values
        if (info := transform_info(value))
    ]  # fmt: skip


def _line_of(function: Any) -> int:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_firstlineno if code is not None else 1


def _compute_with_imports(
    function: Callable[..., Any],
    info: TransformInfo | IntermediateInfo,
    code: tuple[Path, Path],
) -> Callable[..., Any]:
    names = (*info.inputs, *((STATE_FRAME,) if getattr(info, "state", "") else ()))

    def compute(context: Any, frames: Mapping[str, Any]) -> Any:
        # The function may import its modules only when it is called.
        with job_imports(*code):
            return function(context, *(frames[name] for name in names))

    return compute


def _import_job_module(root: Path, path: Path, file: str, text: str) -> ModuleType:
    identity = hashlib.sha256(f"{path}\0{text}".encode()).hexdigest()[:16]
    name = f"lakehouse_backfill_job_{identity}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported", fix="correct transform.file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    # Executors do not have the file: its functions are pickled by value.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        with write_guard.forbid_job_writes(), driver_guard.watch_job(root):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, BackfillError):
            raise
        raise job_failed("the job file failed on import", file, error) from error
    return module


def _sql_jobs(spark: SparkSession, file: str, text: str) -> list[Job]:
    info = _header(file, text)
    try:
        query = parse_query(text)
    except NotAQuery as error:
        raise ConfigError(f"{file} is no query: {error}", fix="write one SELECT") from error
    unpinned = sorted(referenced_tables(query) - set(info.inputs))
    if unpinned:
        raise ConfigError(
            f"{file} reads {', '.join(unpinned)}, which is not pinned by the run",
            fix="name it in `-- inputs:` and write {name} in the query",
        )

    def compute(context: JobContext, frames: Mapping[str, Any]) -> Any:
        inputs = {name: frames[name] for name in info.inputs}
        return spark.sql(text, args=_parameters(context), **inputs)

    return [Job(info, file, compute)]


def _header(file: str, text: str) -> TransformInfo:
    values = sql_header(text)
    missing = [name for name in ("name", "version", "inputs") if name not in values]
    if missing:
        raise ConfigError(
            f"{file} lacks the header line {' and '.join(f'`-- {name}:`' for name in missing)}",
            fix="start the file with -- name:, -- version: and -- inputs: lines",
        )
    inputs = tuple(part.strip() for part in values["inputs"].split(",") if part.strip())
    try:
        return TransformInfo(name=values["name"], version=values["version"], inputs=inputs)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}", fix="correct its header lines") from error


#: Values of the context that a SQL file may use.
_SQL_PARAMETERS = (
    "run_id", "mode", "clock", "transform_version", "publish_from", "publish_to",
)  # fmt: skip


def _parameters(context: JobContext) -> dict[str, Any]:
    """Return the values that a SQL file may use as `:name`; names of the context win.

    A list becomes an array. `rows_COLUMN` holds the values of the row predicate, or the two ends of
    a range.
    """
    own = {name: getattr(context, name) for name in _SQL_PARAMETERS}
    rows = {
        f"rows_{name}": (named.start, named.stop) if isinstance(named, NamedRange) else named
        for name, named in context.row_predicate.items()
    }
    return {name: sql_argument(value) for name, value in {**context.config, **rows, **own}.items()}
