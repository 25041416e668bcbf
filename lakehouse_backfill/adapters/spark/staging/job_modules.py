"""Imports of a job's own modules: from the folder of its code, and from nowhere else.

Two versions of one job may be loaded by one process: their modules have the same names, so none of
them stays in `sys.modules` beyond the block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

#: By folder: the modules that were imported from it, by name.
_modules_by_folder: dict[Path, dict[str, ModuleType]] = {}


@contextmanager
def job_imports(folder: Path, job: Path) -> Iterator[None]:
    """Let imports find the modules in `folder` and beside the job, first of all."""
    places = [str(folder), str(job.parent)]
    own = _modules_by_folder.setdefault(folder, {})
    names = _importable_names(folder, job)
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules.update(own)
    sys.path[:0] = places
    try:
        with _pickling_by_value(names):
            yield
    finally:
        # Packages without a file look their places up in sys.path: asked before it changes.
        imported = _imported(folder)
        for place in places:
            sys.path.remove(place)
        for name, module in imported.items():
            if name not in own:
                _pickle_by_value(module)
            own[name] = module
            del sys.modules[name]
        sys.modules.update(hidden)


def _importable_names(folder: Path, job: Path) -> set[str]:
    """Give the names under which the folder's modules, and their packages, may be imported."""
    found: set[str] = set()
    for root in (folder, job.parent):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return found


def _imported(folder: Path) -> dict[str, ModuleType]:
    """Give the modules and packages of the folder that are imported now, but for jobs."""
    return {
        name: module
        # A list of its items is not made at once: other threads import meanwhile.
        for name, module in sys.modules.copy().items()
        if not name.startswith("lakehouse_backfill_job_") and _is_in_folder(module, folder)
    }


def _is_in_folder(module: ModuleType, folder: Path) -> bool:
    try:
        places = [module.__file__] if getattr(module, "__file__", None) else list(module.__path__)
    except (AttributeError, KeyError, TypeError):
        return False
    # A package without a file may have a part in the working directory too.
    return any(place is not None and Path(place).is_relative_to(folder) for place in places)


@contextmanager
def _pickling_by_value(names: set[str]) -> Iterator[None]:
    """Let what the block imports travel with tasks that the same block makes.

    A module is known only once it is imported, and the public function takes no name: so the names
    of all that may be imported are registered before. Those that were not are taken back.
    """
    from pyspark.cloudpickle import cloudpickle

    registry: set[str] = cloudpickle._PICKLE_BY_VALUE_MODULES
    new = names - registry
    registry |= new
    try:
        yield
    finally:
        registry -= new


def _pickle_by_value(module: ModuleType) -> None:
    """Executors do not have the file: what it holds travels with the tasks."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
