"""What job code may not read by Spark, as the read itself acts outside.

Spark reads in the JVM, which raises no events of Python. A JDBC connection creates an embedded
database, or runs a statement before it reads; a path of http calls a server, and one of a store
(`s3a`, `hdfs`, `abfss`, …) asks the store what is there, before anything can say that the read is
not pinned. Such reads are refused where the job asks for them, so nothing is contacted. Paths of
servers are refused by the JVM as well: it has no file system for them. A text of XML names a
server, too, which functions of Spark would call: the JVM loads nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakehouse_backfill.adapters.spark.guard.process_guard import GUARD

#: Schemes of files that call a server; the session of a job has no file system for them.
SERVER_SCHEMES = ("http", "https", "ftp", "sftp", "webhdfs", "swebhdfs")
#: The scheme of a path, wherever it begins in a text: `{a,b}` and `a,b` are several paths.
_SCHEME = re.compile(r"(?<![\w+.-])([A-Za-z][A-Za-z0-9+.-]+):/")
#: The only file system that a path of a job may name: that of the machine.
_LOCAL = "file"
#: Options of a reader that hold what is read.
_PLACES = ("path", "paths", "basepath", "url")
#: What begins the options that reach Hadoop: another file system, or server, for any scheme.
_FILE_SYSTEM_SETTINGS = ("fs.", "dfs.", "ipc.")
#: Options by which functions of Spark open a file: a schema.
_FILE_OPTIONS = ("rowvalidationxsdpath", "avroschemaurl")
_FILE_OPTION = re.compile("|".join(_FILE_OPTIONS), re.IGNORECASE)
#: Files in a query: a format, and a path in place of a table.
_FILES_IN_QUERY = re.compile(r"\w`?\s*\.\s*`([^`]*)`")
#: Methods of Java that take a path: readers of models and vectors, the cache of files.
_JAVA_PATHS = frozenset({"load", "loadLabeledPoints", "loadVectors", "refreshByPath"})
#: Formats, and parts of the names of their classes, whose reading acts.
_ACTING_FORMATS = ("jdbc", "socket", "kafka")
#: A class that does not exist.
_NO_FILE_SYSTEM = "lakehouse_backfill.NotReadByJobs"

#: The XPath functions of Spark would load a DTD that a text names from any server, and a schema.
NO_EXTERNAL_XML = "-Djavax.xml.accessExternalDTD= -Djavax.xml.accessExternalSchema=file"

#: Says what a call would read; nothing when it may.
ReadCheck = Callable[..., str]


def without_servers(warehouse: str) -> dict[str, str]:
    """Return settings by which Spark opens no file by a server's address, but the warehouse's."""
    own = warehouse.partition(":")[0].lower()
    return {
        f"spark.hadoop.fs.{scheme}.impl": _NO_FILE_SYSTEM
        for scheme in SERVER_SCHEMES
        if scheme != own
    } | {"spark.sql.runSQLOnFiles": "false"}


def describe_format(source: Any, *_: Any, **__: Any) -> str:
    """Return what a reader of this format does; empty when its reading does not act."""
    acting = next((one for one in _ACTING_FORMATS if one in str(source).lower()), "")
    return f"to read by the format {acting}, whose connection can act" if acting else ""


def describe_jdbc(*_: Any, **__: Any) -> str:
    """Return what a read by JDBC does."""
    return describe_format("jdbc")


def describe_places(*places: Any, **named: Any) -> str:
    """Return the server or store that a reader would call; empty when it reads local files."""
    found = next(filter(None, map(_remote, _texts((*places, *named.values())))), "")
    return describe_format(named.get("format", "")) or _reads_from(found)


def describe_options(*pair: Any, **named: Any) -> str:
    """Return the server or store that options of a reader name, or may choose; else nothing."""
    options = dict([pair]) if len(pair) == 2 else named
    if len(pair) < 2 and {"key", "value"} == set(named):
        options = {named["key"]: named["value"]}
    if any(str(key).strip().lower().startswith(_FILE_SYSTEM_SETTINGS) for key in options):
        return "to read from a server (that settings of file systems choose)"
    # The format of a date is a text that may hold anything.
    return describe_places(*(
        value for key, value in options.items() if not str(key).lower().endswith("format")
    ))  # fmt: skip


def describe_default(store: str, member: str, *places: Any, **named: Any) -> str:
    """Return the store that places without a scheme lead to, where `store` is the default."""
    named |= {str(places[0]): places[1]} if member == "option" and len(places) > 1 else {}
    given = [value for key, value in named.items() if _is_place(key)]
    if member not in ("option", "options"):
        given += [*places[:1], *(place for place in places[1:] if member == "parquet")]
    is_bare = any(text and not _SCHEME.search(text) for text in _texts(given))
    return _reads_from(_remote(f"{store.partition(':')[0]}:/")) if is_bare else ""


def describe_query(text: str) -> str:
    """Return the server or store that a query, an expression or a literal leads to."""
    if _FILE_OPTION.search(text):
        return "to read a schema by an option of a function, from a server or store"
    return _reads_from(next(filter(None, map(_remote, _FILES_IN_QUERY.findall(text))), ""))


def describe_call(name: str, arguments: tuple[Any, ...]) -> str:
    """Return the server or store that PySpark is about to read from by a method of Java."""
    options = [
        str(value)
        for given in arguments
        if isinstance(given, dict)
        for key, value in given.items()
        if str(key).lower() in _FILE_OPTIONS
    ]
    places = [*options, *(_texts(arguments) if name in _JAVA_PATHS else ())]
    if places:
        found = describe_places(*places) or describe_default(default_store(), "load", places)
        if found:
            return found
    if name == "option":
        return ""
    texts = _texts(arguments)
    if name == "lit":
        # The text of a literal is a value.
        texts = (text for text in texts if text.lower() in _FILE_OPTIONS)
    return next(filter(None, map(describe_query, texts)), "")


def default_store() -> str:
    """Return the address that paths without a scheme lead to; empty with Spark Connect."""
    from lakehouse_backfill.adapters.spark.commits.java_api import default_file_system

    with GUARD.trusted():
        return default_file_system()


def _is_place(key: Any) -> bool:
    return str(key).strip().lower() in _PLACES


def _reads_from(scheme: str) -> str:
    kind = "server" if scheme in SERVER_SCHEMES else "store"
    return f"to read from a {kind} ({scheme})" if scheme else ""


def _remote(text: str) -> str:
    """Return the first scheme of a text that leads away from this machine."""
    schemes = (found.lower() for found in _SCHEME.findall(text))
    return next((scheme for scheme in schemes if scheme != _LOCAL), "")


def _texts(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _texts(value)


#: Members of a reader that take paths, or `load` what options name.
PATH_MEMBERS = ("load", "json", "text", "csv", "parquet", "orc", "xml", "option", "options")
#: Classes of PySpark, and what is looked at in calls of their members.
READ_MEMBERS: tuple[tuple[str, str, Mapping[str, ReadCheck]], ...] = (
    *(
        (module, name, {
            "format": describe_format, "option": describe_options, "options": describe_options,
            "jdbc": describe_jdbc,
            **dict.fromkeys(
                (*PATH_MEMBERS, "table", "changes"), describe_places,
            ),
        })
        for module, name in (
            ("readwriter", "DataFrameReader"), ("streaming.readwriter", "DataStreamReader"),
        )
    ),
    ("catalog", "Catalog", dict.fromkeys(
        ("refreshByPath", "cacheTable", "tableExists", "getTable", "listColumns", "refreshTable",
         "isCached", "uncacheTable"), describe_places,
    )),
)  # fmt: skip
#: Reads of the context that name Java classes to read with, or files.
CONTEXT_PATHS = ("textFile", "wholeTextFiles", "binaryFiles", "binaryRecords", "pickleFile")
CONTEXT_CLASSES = ("sequenceFile", "hadoopFile", "hadoopRDD", "newAPIHadoopFile", "newAPIHadoopRDD")
