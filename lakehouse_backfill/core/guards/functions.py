"""Names whose result isn't decided by their arguments: functions of Spark, names of Python."""

from __future__ import annotations

import re

from lakehouse_backfill.domain.guards.determinism import KindName

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
