"""What job code may not read by Spark, as the read itself acts outside.

Spark reads in the JVM, which raises no events of Python. A JDBC connection creates an embedded
database, or runs a statement before it reads; a path of http calls a server. Such reads are refused
where the job asks for them. Paths are refused by the JVM as well: it has no file system for them. A
text of XML names a server, too, which functions of Spark would call: the JVM loads nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: Schemes of files that call a server; the session of a job has no file system for them.
SERVER_SCHEMES = ("http", "https", "ftp", "sftp", "webhdfs", "swebhdfs")
_ADDRESS = re.compile(rf"(?i)\b({'|'.join(SERVER_SCHEMES)}):/")
#: Options of a reader that hold what is read.
_PLACES = ("path", "paths", "basepath", "url")
#: What begins the options that reach Hadoop: another file system, or server, for any scheme.
_FILE_SYSTEM_SETTINGS = ("fs.", "dfs.", "ipc.")
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
    """Return the server that a reader would call; empty when it reads files."""
    found = next(filter(None, map(_server, _texts((*places, *named.values())))), "")
    kind = describe_format(named.get("format", ""))
    return kind or (f"to read from a server ({found})" if found else "")


def describe_options(*pair: Any, **named: Any) -> str:
    """Return the server that options of a reader name, or may choose; empty when there is none."""
    options = dict([pair]) if len(pair) == 2 else named
    if len(pair) < 2 and {"key", "value"} == set(named):
        options = {named["key"]: named["value"]}
    settings = [
        key for key in options if str(key).strip().lower().startswith(_FILE_SYSTEM_SETTINGS)
    ]
    if settings:
        return "to read from a server (that settings of file systems choose)"
    places = [value for key, value in options.items() if str(key).lower() in _PLACES]
    return describe_places(*places)


def _server(text: str) -> str:
    found = _ADDRESS.search(text)
    return found[1].lower() if found else ""


def _texts(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _texts(value)


#: Classes of PySpark, and what is looked at in calls of their members.
READ_MEMBERS: tuple[tuple[str, str, Mapping[str, ReadCheck]], ...] = (
    *(
        (module, name, {
            "format": describe_format, "option": describe_options, "options": describe_options,
            "jdbc": describe_jdbc,
            **dict.fromkeys(
                ("load", "json", "text", "csv", "parquet", "orc", "xml", "table", "changes"),
                describe_places,
            ),
        })
        for module, name in (
            ("readwriter", "DataFrameReader"), ("streaming.readwriter", "DataStreamReader"),
        )
    ),
)  # fmt: skip
#: Reads of the context that name Java classes to read with, or files.
CONTEXT_PATHS = ("textFile", "wholeTextFiles", "binaryFiles", "binaryRecords", "pickleFile")
CONTEXT_CLASSES = ("sequenceFile", "hadoopFile", "hadoopRDD", "newAPIHadoopFile", "newAPIHadoopRDD")
