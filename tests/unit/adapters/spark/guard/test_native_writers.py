"""PyArrow and pandas write nowhere for a job, by public names, inner modules or a library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.spark.guarded import FILE, try_lines

_PANDAS = "import pandas as p; d = p.DataFrame({'a': [1]}); "
_ARROW = "import pyarrow as a; t = a.table({'a': [1]}); "
#: A library that is installed beside the job, and writes for it.
_LIBRARY = """
import pyarrow as pa
import pyarrow.csv, pyarrow.dataset, pyarrow.feather, pyarrow.orc, pyarrow.parquet as pq
TABLE = pa.table({"a": [1]})
def parquet(path): pq.write_table(TABLE, path)
def dataset(path): pyarrow.dataset.write_dataset(TABLE, path, format="parquet")
def parts(path): pq.write_to_dataset(TABLE, path)
def metadata(path): pq.write_metadata(TABLE.schema, path)
def orc(path): pyarrow.orc.write_table(TABLE, path)
def feather(path): pyarrow.feather.write_feather(TABLE, path)
def csv(path): pyarrow.csv.write_csv(TABLE, path)
def read(path): return pq.read_table(path)
"""
LINES = {
    "PyArrow inner file system": "import pyarrow._fs as f; f.LocalFileSystem()",
    "PyArrow inner Parquet": "from pyarrow import _parquet",
    "PyArrow inner data set": "from pyarrow._dataset import _filesystemdataset_write",
    "PyArrow inner Flight": "import pyarrow._flight",
    "PyArrow inner CSV": "import pyarrow._csv as c; c.write_csv(None, '{folder}/a')",
    "PyArrow inner ORC": "import pyarrow._orc",
    "PyArrow inner member": _ARROW + "a._parquet",
    "PyArrow public member": _ARROW + "a.dataset",
    "PyArrow lib, file": _ARROW + "a.lib.OSFile('{folder}/b', 'wb')",
    "PyArrow lib, imported file": "from pyarrow.lib import OSFile; OSFile('{folder}/b', 'wb')",
    "PyArrow lib, map": _ARROW + "a.lib.create_memory_map('{folder}/c', 8)",
    "PyArrow lib, mapped file": _ARROW + "a.lib.MemoryMappedFile.create('{folder}/c', 8)",
    "PyArrow lib, stream": _ARROW + "a.lib.output_stream('{folder}/d')",
    "PyArrow compressed stream": _ARROW + "a.CompressedOutputStream('{folder}/e', 'gzip')",
    "PyArrow lib, compressed": _ARROW + "a.lib.CompressedOutputStream('{folder}/e', 'gzip')",
    "PyArrow lib, writer": _ARROW + "a.lib._RecordBatchFileWriter()._open('{folder}/f', t.schema)",
    "PyArrow IPC writer": _ARROW + "a.RecordBatchStreamWriter('{folder}/f', t.schema)",
    "pandas Parquet": _PANDAS + "d.to_parquet('{folder}/g')",
    "pandas Parquet, inner": _PANDAS + "p.io.parquet.to_parquet(d, '{folder}/g')",
    "pandas Parquet, engine": _PANDAS + "p.io.parquet.PyArrowImpl().write(d, '{folder}/g')",
    "pandas Parquet, parts": _PANDAS + "d.to_parquet('{folder}', partition_cols=['a'])",
    "pandas Feather": _PANDAS + "d.to_feather('{folder}/h')",
    "pandas Feather, inner": _PANDAS + "p.io.feather_format.to_feather(d, '{folder}/h')",
    "pandas ORC, inner": _PANDAS + "p.io.orc.to_orc(d, '{folder}/i')",
    "pandas CSV": _PANDAS + "d.to_csv('{folder}/j')",
    "pandas CSV to a store": _PANDAS + "d.to_csv('s3://bucket/j')",
    "pandas JSON to a store": _PANDAS + "d.to_json('gs://bucket/j')",
    "pandas pickle": _PANDAS + "d.to_pickle('{folder}/k')",
    "pandas SQL": _PANDAS + "d.to_sql('t', 'sqlite://')",
    "pandas SQL, inner": _PANDAS + "p.io.sql.to_sql(d, 't', 'sqlite://')",
    "pandas SQL, connection": _PANDAS + "p.io.sql.pandasSQL_builder('sqlite://')",
    "pandas HDF": _PANDAS + "p.HDFStore('{folder}/l')",
    "pandas reads an address": _PANDAS + "p.read_csv('http://127.0.0.1:1/a')",
    "pandas reads a store": _PANDAS + "p.read_csv('s3://bucket/a')",
    "pandas reads Parquet of a store": _PANDAS + "p.read_parquet('s3://bucket/a')",
    "pandas reads SQL": _PANDAS + "p.read_sql('SELECT 1', 'sqlite://')",
    "pandas handle": _PANDAS + "p.io.common.get_handle('memory://a', 'w')",
    **{
        f"a library, {name}": f"import writing; writing.{name}('{{folder}}/m')"
        for name in ("parquet", "dataset", "parts", "metadata", "orc", "feather", "csv")
    },
    "a library reads a store": "import writing; writing.read('s3://bucket/a')",
}


@pytest.fixture
def library(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "writing.py").write_text(_LIBRARY)
    return {"PYTHONPATH": ":".join([str(folder), *filter(None, sys.path)])}


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_pyarrow_and_pandas_write_nowhere_for_a_job(
    tmp_path: Path, library: dict[str, str], in_worker: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    lines = [line.replace("{folder}", str(outside)) for line in LINES.values()]
    found = try_lines(tmp_path / "project", lines, in_worker=in_worker, environment=library)
    seen = dict(zip(LINES, found, strict=True))
    assert {name: one for name, one in seen.items() if not one.attempts} == {}
    assert [one.places[0] for one in found] == [(FILE, n) for n in range(1, len(found) + 1)]
    assert list(outside.iterdir()) == []


HONEST = (
    _PANDAS + "return d.to_csv()",
    _PANDAS + "import io; b = io.BytesIO(); d.to_parquet(b); b.seek(0); return p.read_parquet(b)",
    _PANDAS + "import io; return p.read_csv(io.StringIO('a')).columns[0]",
    _PANDAS + "return p.io.common.is_url('a')",
    _ARROW + "s = a.BufferOutputStream(); w = a.ipc.new_file(s, t.schema); w.write(t); w.close()",
    _ARROW + "return isinstance(a.lib.ArrowInvalid(), ValueError)",
    _ARROW + "return a.lib.Table is a.Table",
    "import pyarrow.json as j, pyarrow.compute, pyarrow.types; return 1",
)


@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_pyarrow_and_pandas_compute_in_memory(tmp_path: Path, in_worker: bool) -> None:
    found = try_lines(tmp_path, HONEST, in_worker=in_worker)
    assert [(one.attempts, one.result) for one in found if "Error" in one.result] == []
    assert [one.attempts for one in found] == [()] * len(HONEST)
