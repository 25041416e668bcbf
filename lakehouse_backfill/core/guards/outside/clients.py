"""Modules that reach outside from native code, or for which no run has a use.

Audit events of Python do not see native code, so job code may not import these itself. The list is
compared with docs/side-effects.md by a test.
"""

from __future__ import annotations

from collections.abc import Mapping

#: By kind of sink: modules that are refused, with everything below them.
CLIENTS_BY_SINK: Mapping[str, tuple[str, ...]] = {
    "table": (
        "pyiceberg", "deltalake", "delta", "hudi", "daft", "lance", "lancedb", "ray", "polars",
        "duckdb", "_duckdb", "datafusion", "chdb", "pyiceberg_core",
    ),
    "file": (
        "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.csv", "pyarrow.feather",
        "pyarrow.orc", "pyarrow.flight", "pyarrow.OSFile", "pyarrow.MemoryMappedFile",
        "pyarrow.memory_map", "pyarrow.create_memory_map", "pyarrow.output_stream",
        "pyarrow._fs", "pyarrow._s3fs", "pyarrow._gcsfs", "pyarrow._azurefs",
        "pyarrow._hdfs", "pyarrow._parquet", "pyarrow._parquet_encryption",
        "pyarrow._dataset", "pyarrow._dataset_parquet",
        "pyarrow._dataset_parquet_encryption", "pyarrow._dataset_orc", "pyarrow._csv",
        "pyarrow._feather", "pyarrow._orc", "pyarrow._flight", "pyarrow.substrait",
        "pyarrow._substrait", "pyarrow.cffi", "pyarrow.jvm",
        "pyarrow.CompressedOutputStream", "pyarrow.lib.OSFile",
        "pyarrow.lib.MemoryMappedFile", "pyarrow.lib.CompressedOutputStream",
        "pyarrow.lib._RecordBatchFileWriter", "pyarrow.lib._RecordBatchStreamWriter",
        "fastparquet",
        "h5py", "tables", "netCDF4", "zarr", "fsspec", "s3fs", "gcsfs", "adlfs", "obstore",
        "opendal", "smart_open", "readline",
    ),
    "topic": (
        "kafka", "confluent_kafka", "aiokafka", "pulsar", "pika", "aio_pika", "kombu", "celery",
        "nats", "zmq", "paho", "google.pubsub",
    ),
    "cloud": (
        "boto3", "botocore", "aiobotocore", "aioboto3", "s3transfer", "google.cloud",
        "googleapiclient", "azure", "msal", "oci", "minio", "snowflake", "databricks",
    ),
    "network": (
        "grpc", "grpclib", "requests", "urllib3", "httpx", "httpcore", "aiohttp", "websockets",
        "websocket", "pycurl", "curl_cffi", "paramiko", "asyncssh", "uvloop", "dns", "smtplib",
        "ftplib", "imaplib", "poplib", "telnetlib", "xmlrpc", "slack_sdk", "sentry_sdk", "_socket",
    ),
    "database": (
        "sqlite3", "_sqlite3", "aiosqlite", "psycopg", "psycopg2", "asyncpg", "pg8000", "MySQLdb",
        "pymysql", "mysql", "pymssql", "pyodbc", "cx_Oracle", "oracledb", "ibm_db", "jaydebeapi",
        "sqlalchemy", "adbc_driver_manager", "adbc_driver_flightsql", "adbc_driver_postgresql",
        "adbc_driver_duckdb",
        "clickhouse_connect", "clickhouse_driver", "trino", "prestodb", "pyhive", "pymongo",
        "motor", "cassandra", "neo4j", "influxdb_client", "lmdb", "rocksdb", "dbm",
        "_dbm", "_gdbm",
    ),
    "cache": ("redis", "aioredis", "valkey", "memcache", "pymemcache", "pylibmc"),
    "search index": ("elasticsearch", "opensearchpy", "meilisearch", "typesense", "qdrant_client"),
    "native code": ("ctypes", "_ctypes", "cffi", "_cffi_backend", "py4j", "jpype", "jnius",
                    "tkinter", "_tkinter", "turtle"),
    "process": (
        "multiprocessing", "_multiprocessing", "_thread", "_posixsubprocess", "_posixshmem",
        "_xxsubinterpreters", "_interpreters", "concurrent.interpreters", "pexpect", "sh",
        "invoke", "fabric",
    ),
    "after the run": ("atexit", "signal", "_signal", "faulthandler"),
    "toolkit": (
        "lakehouse_backfill.adapters", "lakehouse_backfill.cli", "lakehouse_backfill.config",
        "lakehouse_backfill.core", "lakehouse_backfill.demo", "lakehouse_backfill.fault_points",
        "lakehouse_backfill.onboarding", "lakehouse_backfill.ports", "lakehouse_backfill.project",
        "lakehouse_backfill.report", "lakehouse_backfill.wiring", "lakehouse_backfill.Project",
        "lakehouse_backfill.accepted",
    ),
}  # fmt: skip
#: By module: the kind of sink.
CLIENTS: Mapping[str, str] = {
    module: sink for sink, modules in CLIENTS_BY_SINK.items() for module in modules
}
