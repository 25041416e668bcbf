"""What makes two runs on the same input differ, found in the text of a query.

sqlglot parses the text; it is loaded only when there is one. Where a query sorts arrays, or has a
window, the analysed plan decides.

Names whose result isn't decided by their arguments: functions of Spark, names of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lakehouse_backfill.domain.guards.determinism import KINDS, Finding, KindName
from lakehouse_backfill.transforms import sql_header

_NAME = re.compile(r"\w+")
_IN_BRACES = re.compile(r"\{(\w+)\}")


def scan_sql_file(text: str, file: str) -> tuple[Finding, ...]:
    """Return what is found in a SQL file of a transform.

    Its inputs are pinned: those that it declares, and names in braces, which are refused elsewhere
    where it declares them not.
    """
    inputs = {name.strip() for name in sql_header(text).get("inputs", "").split(",")}
    inputs.update(_IN_BRACES.findall(text))
    found = scan_sql(text, file, 1)
    return tuple(
        one for one in found if one.kind != "unpinned_read" or one.found.split()[-1] not in inputs
    )


def scan_sql(text: str, file: str, first_line: int) -> tuple[Finding, ...]:
    """Return what is found in one query; nothing for a text that is none.

    Such a text is refused where it is executed.
    """
    from lakehouse_backfill.core.guards.queries import NotAQuery, parse_query, referenced_tables

    try:
        query = parse_query(text)
    except NotAQuery:
        return ()
    found: dict[tuple[int, str, str], Finding] = {}
    for kind, line, what in _SqlScan(query).findings():
        place = first_line + line - 1
        found.setdefault(
            (place, kind, what),
            Finding(kind=kind, file=file, line=place, found=what, severity=KINDS[kind].severity),
        )
    for table in sorted(referenced_tables(query)):
        line = next(
            (n for n, row in enumerate(text.splitlines()) if table in row.replace("`", "")), 0
        )
        place = first_line + line
        found[place, "unpinned_read", table] = Finding(
            kind="unpinned_read", file=file, line=place, found=f"FROM {table}"
        )
    return tuple(found[key] for key in sorted(found))


class _SqlScan:
    """The rules over one parsed query; each yields kind, line and what is found."""

    def __init__(self, query: object) -> None:
        from sqlglot import exp

        self._exp = exp
        self._query = query

    def findings(self) -> Iterator[tuple[KindName, int, str]]:
        exp = self._exp
        nodes = list(self._query.walk())  # type: ignore[attr-defined]
        functions = [(node, _function(node)) for node in nodes if isinstance(node, exp.Func)]
        sorts = any(name in SORTING for _, name in functions)
        for node, name in functions:
            kind = SPARK_FUNCTIONS.get(name)
            if kind is None or kind == "tied_rank":
                continue
            if kind in ("unordered_collection", "unordered_first") and (
                sorts or self._is_ordered(node)
            ):
                continue
            yield kind, _line(node), f"{name}()"
            if kind in RANDOM_KINDS and (moved := self._shuffle_by(node)):
                yield "random_shuffle", _line(node), f"{moved} by {name}()"
        for node in nodes:
            if isinstance(node, exp.TableSample):
                yield "unordered_limit", _line(node.parent or node), "TABLESAMPLE"
            elif isinstance(node, exp.Limit) and self._is_unordered_limit(node):
                yield "unordered_limit", _line(node), "LIMIT without ORDER BY"

    def _is_ordered(self, node: object) -> bool:
        exp = self._exp
        parent = node.parent  # type: ignore[attr-defined]
        while parent is not None and not isinstance(parent, exp.Query):
            if isinstance(parent, (exp.Window, exp.WithinGroup)):
                return True
            if isinstance(parent, exp.Func) and _function(parent) in ORDERLESS:
                return True
            parent = parent.parent
        return False

    def _is_unordered_limit(self, node: object) -> bool:
        query, value = node.parent, node.expression  # type: ignore[attr-defined]
        is_none = value is not None and value.name == "0"
        return not is_none and not query.args.get("order")

    def _shuffle_by(self, node: object) -> str:
        """Return the clause that moves rows by a value; empty when none does."""
        exp = self._exp
        clauses = {
            exp.Group: "GROUP BY", exp.Join: "JOIN", exp.Distribute: "DISTRIBUTE BY",
            exp.Cluster: "CLUSTER BY",
        }  # fmt: skip
        child, parent = node, node.parent  # type: ignore[attr-defined]
        while parent is not None and not isinstance(parent, exp.Query):
            if type(parent) in clauses:
                return clauses[type(parent)]
            if isinstance(parent, exp.Window) and child in parent.args.get("partition_by", ()):
                return "PARTITION BY"
            child, parent = parent, parent.parent
        return ""


def _function(node: object) -> str:
    """Return the name of a function as Spark writes it."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    match = _NAME.match(node.sql(dialect="spark"))  # type: ignore[attr-defined]
    return match.group().lower() if match else ""


def _line(node: object) -> int:
    """Return the line of a node: its own, or that of the first node inside or around it."""
    for inner in node.walk():  # type: ignore[attr-defined]
        if line := inner.meta.get("line"):
            return int(line)
    parent = node.parent  # type: ignore[attr-defined]
    lines = (
        [int(one.meta["line"]) for one in parent.walk() if one.meta.get("line")] if parent else []
    )
    return max(lines, default=1)


#: Functions of Spark, by the names of its SQL.
_BY_KIND: dict[KindName, str] = {
    "wall_clock": "now current_timestamp current_date curdate localtimestamp current_time "
    "unix_timestamp",
    "random_value": "rand random randn uniform randstr shuffle",
    "generated_id": "uuid monotonically_increasing_id spark_partition_id",
    "file_name": "input_file_name input_file_block_start input_file_block_length",
    "unordered_collection": "collect_list collect_set array_agg listagg listagg_distinct "
    "string_agg string_agg_distinct",
    "unordered_first": "first first_value last last_value any_value",
    "tied_rank": "row_number ntile lag lead nth_value max_by min_by mode",
    "environment": "current_user user session_user current_catalog current_database "
    "current_schema version",
    "time_zone": "current_timezone",
}
SPARK_FUNCTIONS: dict[str, KindName] = {
    name: kind for kind, names in _BY_KIND.items() for name in names.split()
}
#: Kinds whose values differ when a stage is tried again.
RANDOM_KINDS = frozenset({"random_value", "generated_id"})
#: Functions that give an array a fixed order.
SORTING = frozenset({"sort_array", "array_sort"})
#: Functions of an array for which the order of its elements doesn't matter.
ORDERLESS = frozenset(
    {
        "size",
        "array_size",
        "cardinality",
        "array_contains",
        "array_max",
        "array_min",
        "arrays_overlap",
    }
)

#: Names outside Spark; one that ends with `.` means all members of a module.
PYTHON_NAMES: dict[KindName, tuple[str, ...]] = {
    "wall_clock": (
        "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
        "datetime.date.today", "time.time", "time.time_ns", "time.ctime", "time.asctime",
        "pandas.Timestamp.now", "pandas.Timestamp.today", "pandas.Timestamp.utcnow",
        "pendulum.now", "pendulum.today", "arrow.now", "arrow.utcnow",
    ),
    "random_value": ("random.", "secrets.", "numpy.random.", "os.urandom"),
    "generated_id": ("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"),
    "environment": (
        "os.environ", "os.environb", "os.getenv", "os.getenvb", "os.getpid", "os.getcwd",
        "os.uname", "os.cpu_count", "os.getlogin", "platform.", "socket.gethostname",
        "socket.getfqdn", "getpass.", "sys.argv", "subprocess.", "os.system", "os.popen",
        "pathlib.Path.home", "pathlib.Path.cwd", "os.path.expanduser",
    ),
    "file_read": (
        "builtins.open", "io.open", "os.open", "os.listdir", "os.scandir", "os.walk", "glob.",
        "pathlib.Path().read_text", "pathlib.Path().read_bytes", "pathlib.Path().open",
        "pathlib.Path().iterdir", "pathlib.Path().glob", "pathlib.Path().rglob",
        "codecs.open", "gzip.open", "bz2.open", "lzma.open", "fileinput.", "shelve.open",
        "sqlite3.connect", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile",
        ".read_text", ".read_bytes", "pyarrow.parquet.", "pyarrow.csv.", "pyarrow.dataset.",
    ),
    "network": (
        "urllib.request.", "requests.", "httpx.", "aiohttp.", "urllib3.", "http.client.",
        "socket.", "smtplib.", "ftplib.", "imaplib.", "telnetlib.", "xmlrpc.", "boto3.",
        "botocore.", "grpc.", "kafka.", "confluent_kafka.", "redis.", "pymongo.", "psycopg.",
        "psycopg2.", "sqlalchemy.create_engine", "paramiko.", "websockets.",
    ),
    "time_zone": (
        "time.localtime", "time.mktime", "time.tzset", "time.tzname", "time.timezone",
        "time.altzone", "datetime.date.fromtimestamp", "tzlocal.",
    ),
    "hash_order": ("builtins.hash", "builtins.id"),
}  # fmt: skip
_VALUES = frozenset({"os.environ", "sys.argv"})
_PANDAS_READ = re.compile(r"(pandas|polars)\.(read|scan)_\w+$")
#: Generators that give the same values again for the same seed.
SEEDED = (
    "random.Random", "numpy.random.default_rng", "numpy.random.RandomState", "random.seed",
    "numpy.random.seed", "numpy.random.Generator", "numpy.random.PCG64",
)  # fmt: skip


def python_kind(name: str) -> KindName | None:
    """Return the kind of a Python name; None when its result depends on its arguments only."""
    for kind, names in PYTHON_NAMES.items():
        for known in names:
            # What a call returns is not judged again.
            is_member = known.endswith(".") and name.startswith(known) and "(" not in name
            is_part = name.startswith((f"{known}.", f"{known}[]")) and known in _VALUES
            if name == known or is_member or is_part:
                return kind
    return "file_read" if _PANDAS_READ.match(name) else None
