"""The guard inside the driver: which code is a job's, and what it tried."""

from __future__ import annotations

import atexit
import inspect
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer

import lakehouse_backfill
from lakehouse_backfill.adapters.spark.guard import (
    environment_gate,
    guarded_command,
    import_gate,
    java_gate,
    native_writers,
    process_guard,
    scratch,
    unaudited_calls,
    worker_guard,
)
from lakehouse_backfill.adapters.spark.guard.environment_gate import SECRETS
from lakehouse_backfill.adapters.spark.guard.process_guard import GUARD, MARKER, Place
from lakehouse_backfill.adapters.spark.session.settings import SENSITIVE_KEYS, is_secret
from lakehouse_backfill.core.guards.outside.effect_log import describe_attempts
from lakehouse_backfill.core.guards.outside.side_effects import CLIENTS
from lakehouse_backfill.errors import WriteForbidden, hides_texts

#: The text of these modules is sent to workers, in this order.
_SHIPPED = (
    process_guard, import_gate, environment_gate, native_writers, unaudited_calls, scratch,
    worker_guard,
)  # fmt: skip
#: Shorter values of secrets are not looked for in rows and functions: they are there by chance.
LEAST_LENGTH_IN_ROWS = 12
#: Errors name this many attempts.
_NAMED_ATTEMPTS = 5
_FIX = (
    "return the rows from the transform and do the rest after the publication, or declare a sink "
    "in the contract and use context.sink(NAME); files may be written below context.scratch"
)
_REFLECTION = '"org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection"'
_STOPPED = "it was stopped before anything was sent or written"
_UNPUBLISHED = "is not published; readers see what they saw before"
_made_at: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
_scratch: list[str] = []


@contextmanager
def watch_job(folder: Path) -> Iterator[None]:
    """Stop outside effects of code below `folder`, from now on; the block runs such code.

    Raises WriteForbidden, with all attempts, also when the code swallowed the error of one.
    """
    root = f"{folder}/"
    _register(root)
    try:
        yield
    except WriteForbidden as error:
        if attempts := _attempts(root) or error.data.get("attempts"):
            raise forbidden(attempts) from error
        raise
    except Exception as error:
        if attempts := _attempts(root) or attempts_in(str(error)):
            raise forbidden(attempts) from error
        raise
    if attempts := _attempts(root):
        raise forbidden(attempts)


def require_no_attempts(folder: Path) -> None:
    """Raise WriteForbidden for attempts of threads that ran after the job's code had returned."""
    if attempts := _attempts(f"{folder}/"):
        raise forbidden(attempts)


def add_own_modules(names: Collection[str]) -> None:
    """Let jobs import modules of their project, also those with the name of a client."""
    GUARD.own_modules |= {name.partition(".")[0] for name in names}


def declare_secrets(variables: Collection[str]) -> None:
    """Hide these variables of the environment from jobs, whatever their names say."""
    SECRETS.declared |= frozenset(variables)


def require_no_secret(sink: str, text: str) -> None:
    """Record an attempt, and raise WriteForbidden, for a secret's value in a text for a sink."""
    for name, value in _known_secrets().items():
        if value in text or json.dumps(value)[1:-1] in text:
            place = GUARD.maker(sys._getframe(1)) or ("", 0)
            GUARD.stop("secret", f"to send the value of {name} to the sink {sink}", place)


def secrets_of_rows() -> dict[str, str]:
    """Return the values, by name, that rows and functions of a job must not hold."""
    known = _known_secrets().items()
    return {name: value for name, value in known if len(value) >= LEAST_LENGTH_IN_ROWS}


def secrets_in_texts() -> dict[str, str]:
    """Return the values, by name, that are looked for inside longer texts of a few rows.

    A short one counts where it has letters and digits: others are words, which stand there by
    chance.
    """
    return {
        name: value
        for name, value in _known_secrets().items()
        if len(value) >= LEAST_LENGTH_IN_ROWS
        or (re.search(r"[^\W\d_]", value) and re.search(r"\d", value))
    }


def _known_secrets() -> dict[str, str]:
    with GUARD.trusted():  # The job that calls sees none.
        return SECRETS.values(dict(os.environ))


def secret_in_rows(
    name: str, place: Place, *, column: str = "", is_written: bool = True
) -> WriteForbidden:
    """Return the error for rows that hold the value of a secret: in the shadow, or in a query."""
    where = f"the column {column}" if column else "rows"
    attempt = {"sink": "secret", "what": f"to put the value of {name} into {where}"}
    written = f"rows with it stand in the run's shadow, which {_UNPUBLISHED}"
    return forbidden(
        [{**attempt, "file": place[0], "line": place[1]}],
        state=written if is_written else "nothing was sent or written",
        fix=f"take it out of the rows and change the secret {name}; cancel the run, and let "
        "`maintain` remove its shadow",
    )


def require_no_java_in_plan(plan_json: str | None, place: Place) -> None:
    """Raise WriteForbidden when an analysed plan calls Java by name, which may act outside."""
    if plan_json is not None and _REFLECTION in plan_json:
        attempt = {"sink": "Java", "what": "to call Java in a query"}
        raise forbidden([{**attempt, "file": place[0], "line": place[1]}])


def trusted() -> Any:
    """Let this thread act for the toolkit below code of a job, for a block."""
    return GUARD.trusted()


def stop(sink: str, what: str) -> None:
    """Record an attempt of the job's code that calls, and raise WriteForbidden."""
    GUARD.stop(sink, what, GUARD.maker(sys._getframe(1)) or ("", 0))


def scratch_folder() -> str:
    """Return the folder in which jobs of this process may write; it goes with the process."""
    if not _scratch:
        folder = str(scratch.make_held())
        _scratch.append(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        GUARD.scratch = (folder,)
    return GUARD.scratch[0]


def attempts_in(text: str) -> list[dict[str, Any]]:
    """Return the attempts that the error of a Python worker names."""
    _, found, rest = text.partition(MARKER)
    if not found:
        return []
    try:
        attempts = json.JSONDecoder().raw_decode(rest)[0]
    except ValueError:
        return []
    return [_shown(one) for one in attempts]


def forbidden(
    attempts: list[dict[str, Any]], state: str = _STOPPED, fix: str = _FIX
) -> WriteForbidden:
    """Return the error that names what was tried, and where in the job's code."""
    texts = describe_attempts(attempts)
    more = len(texts) - _NAMED_ATTEMPTS
    return WriteForbidden(
        f"job code tried {'; '.join(texts[:_NAMED_ATTEMPTS])}"
        + (f"; and {more} more" if more > 0 else ""),
        state=state,
        fix=fix,
        data={"attempts": attempts},
    )


def _register(root: str) -> None:
    scratch_folder()
    if root not in GUARD.folders:
        GUARD.folders = (*GUARD.folders, root)
    if GUARD.is_on:
        return
    package = Path(lakehouse_backfill.__file__).parent
    paths = sysconfig.get_paths()
    others = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], package}
    GUARD.other_folders = tuple(f"{folder}/" for folder in sorted(map(str, others)))
    GUARD.clients = CLIENTS
    GUARD.client_roots = frozenset(name.partition(".")[0] for name in CLIENTS)
    GUARD.hides_arguments = hides_texts
    native = native_writers.NativeWriters(GUARD)
    GUARD.after_import = native.patch
    native.patch_loaded()
    GUARD.loaded_file = import_gate.loaded_file
    import_gate.install(GUARD)
    java_gate.install(GUARD)
    environment_gate.install(GUARD, SECRETS)
    unaudited_calls.install(GUARD)
    process_guard.install()
    _texts()  # Read once, before a job runs.
    # Executors may lack this package.
    cloudpickle.register_pickle_by_value(guarded_command)  # type: ignore[no-untyped-call]
    _guard_pickling()
    GUARD.is_on = True


def _attempts(root: str) -> list[dict[str, Any]]:
    """Take the attempts of a folder's code out of the list."""
    found = [one for one in GUARD.attempts if one["folder"] == root]
    for one in found:
        GUARD.attempts.remove(one)
    return [_shown(one) for one in found]


def _shown(attempt: dict[str, Any]) -> dict[str, Any]:
    return {name: attempt[name] for name in ("sink", "what", "file", "line")}


def _guard_pickling() -> None:
    original: Callable[..., bytes] = CloudPickleSerializer.dumps

    def dumps(self: Any, obj: Any) -> bytes:
        settings = _settings_for(obj, sys._getframe(1))
        if settings is None:
            return original(self, obj)
        pickled = original(self, obj)
        for name, value in secrets_of_rows().items():
            if value.encode() in pickled:
                what = f"to send the value of {name} to Python workers"
                GUARD.stop("secret", what, settings["made_at"])
        guarded = guarded_command.GuardedCommand(_texts(), settings, pickled)
        return original(self, guarded)

    CloudPickleSerializer.dumps = dumps  # type: ignore[method-assign]


def _settings_for(made: Any, frame: Any) -> dict[str, Any] | None:
    """Return what the guard must know in a worker; None: the object is no function of a job."""
    function = made[0] if isinstance(made, tuple) and made else made
    place = _place_of(function, frame) if callable(function) else None
    if place is None:
        return None
    return {
        "folders": GUARD.folders,
        "other_folders": GUARD.other_folders,
        "scratch": GUARD.scratch,
        "hides_arguments": hides_texts(),
        "clients": dict(GUARD.clients),
        "own_modules": GUARD.own_modules,
        "secret_names": SENSITIVE_KEYS,
        "secret_variables": SECRETS.declared,
        "made_at": place,
    }


def _place_of(function: Any, frame: Any) -> Place | None:
    """Return where a job made the function; None: it is not a job's.

    Spark Connect pickles a function again whenever the frame is used, also by the toolkit.
    """
    code = getattr(function, "__code__", None)
    if code is not None and GUARD.is_job_file(code.co_filename):
        return code.co_filename, code.co_firstlineno
    place = GUARD.maker(frame)
    try:
        if place is None:
            return _made_at.get(function)
        _made_at[function] = place
    except TypeError:
        # It can neither be hashed nor referred to: the code that pickles it decides.
        pass
    return place


@cache
def _texts() -> dict[str, str]:
    return {module.__name__.rpartition(".")[2]: inspect.getsource(module) for module in _SHIPPED}


# Only a driver imports this module.
GUARD.error = lambda attempt: forbidden([attempt])
SECRETS.is_secret_name = is_secret
