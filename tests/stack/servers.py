"""Real servers for tests: on free ports of 127.0.0.1, waited for, stopped by their process id.

A part that is missing fails the test that needs it, and says what installs it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_backfill.adapters.spark.session.java import find_java

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools" / "stack"
HOST = "127.0.0.1"
PATIENCE_S = 60
#: SeaweedFS derives ports of its own from those it is given by adding this.
_BEYOND = 10_000
MAKE = "make servers"


def missing(what: str, fix: str) -> None:
    """Fail: a test with a real server is never skipped."""
    pytest.fail(f"{what} is missing here: {fix}", pytrace=False)


def free_port() -> int:
    """Find a port that is free, as is the one derived from it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((HOST, 0))
            port: int = first.getsockname()[1]
            try:
                second.bind((HOST, (port + _BEYOND) if port < 65_536 - _BEYOND else 0))
            except OSError:
                continue
            if port < 65_536 - _BEYOND:
                return port


def free_ports(names: Sequence[str]) -> dict[str, int]:
    """Find a free port for each name; none is what is derived from another."""
    while True:
        ports = {name: free_port() for name in names}
        taken = {*ports.values(), *(port + _BEYOND for port in ports.values())}
        if len(taken) == 2 * len(ports):
            return ports


@dataclass
class Server:
    """A process that listens; `log` holds its words."""

    command: Sequence[str]
    ports: tuple[int, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None

    def start(self) -> None:
        """Start it and wait until it answers on its ports."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as words:
            self.process = subprocess.Popen(
                list(self.command), stdout=words, stderr=words, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.env}, cwd=self.log.parent, user=self.user,
                group=self.user, extra_groups=[] if self.user else None,
                start_new_session=True, preexec_fn=_die_with_us,
            )  # fmt: skip
        end = time.monotonic() + PATIENCE_S
        for port in self.ports:
            while not self._answers(port):
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    words_said = self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
                    pytest.fail(f"{self.command[0]} did not start:\n{words_said}", pytrace=False)
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, by its own id."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)

    @staticmethod
    def _answers(port: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, port)) == 0


def _die_with_us() -> None:
    """Let the kernel end the server when the tests are killed; only Linux knows how."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


# --- PostgreSQL -------------------------------------------------------------------------------


class Postgres:
    """A PostgreSQL server of its own, as whom initdb permits to run it."""

    def __init__(self, folder: Path) -> None:
        binaries = _postgres_binaries()
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            _give_away(folder, user)
        data, self.port = folder / "data", free_port()
        made = subprocess.run(
            [str(binaries / "initdb"), "-D", str(data), "-U", "lake", "--auth=trust", "-E", "UTF8",
             "--locale=C", "--no-sync"],
            capture_output=True, text=True, check=False, user=user, cwd=folder,
        )  # fmt: skip
        if made.returncode != 0:
            pytest.fail(f"initdb: {made.stdout}{made.stderr}", pytrace=False)
        settings = {
            "listen_addresses": HOST, "unix_socket_directories": "", "fsync": "off",
            "max_connections": "300", "port": str(self.port),
        }  # fmt: skip
        options = [text for item in settings.items() for text in ("-c", "=".join(item))]
        command = [str(binaries / "postgres"), "-D", str(data), *options]
        self.server = Server(command, (self.port,), folder / "log", user=user)
        self.server.start()
        self._wait_until_ready()

    def database(self) -> str:
        """Make an empty database; give its uri."""
        name = f"t_{uuid.uuid4().hex}"
        self._execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg2://lake@{HOST}:{self.port}/{name}"

    def drop(self, uri: str) -> None:
        """Drop the database and whoever is connected to it."""
        self._execute(f"DROP DATABASE {uri.rpartition('/')[2]} WITH (FORCE)")

    def stop(self) -> None:
        """Without waiting for clients to leave."""
        self.server.stop(signal.SIGINT)

    def _wait_until_ready(self) -> None:
        import psycopg2

        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._execute("SELECT 1")
            except psycopg2.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _execute(self, statement: str) -> None:
        import psycopg2

        connection = psycopg2.connect(host=HOST, port=self.port, user="lake", dbname="postgres")
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()


def _postgres_binaries() -> Path:
    try:
        import psycopg2  # noqa: F401 (PyIceberg needs it)
    except ImportError:
        missing("the package psycopg2", f"run `{MAKE}`")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    found += [Path(on_path).resolve()] if on_path else []
    found += sorted(Path("/opt/homebrew/opt").glob("postgresql*/bin/initdb"))
    if not found:
        missing("PostgreSQL (initdb)", "apt install postgresql, or brew install postgresql@16")
    return found[-1].parent


def _give_away(folder: Path, user: str) -> None:
    """PostgreSQL does not run as root, so its folder is another user's, and can be reached."""
    owner = pwd.getpwnam(user)
    os.chown(folder, owner.pw_uid, owner.pw_gid)


# --- Iceberg REST -----------------------------------------------------------------------------


class Rest:
    """Iceberg's own REST catalog; a catalog for each name."""

    def __init__(self, folder: Path) -> None:
        classes, jars = TOOLS / "classes", TOOLS / "jars"
        if not (classes / "RestServer.class").is_file():
            missing("the REST catalog's classes", f"run `{MAKE}`")
        java = find_java()
        if java is None:
            missing("Java 17 or 21", "run `make setup`")
        assert java is not None
        self.folder, port = folder, free_port()
        command = [str(java.home / "bin" / "java"), *java.options, "-Xmx256m"]
        command += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", f"{classes}{os.pathsep}{jars}/*", "RestServer", str(port), str(folder)]
        self.uri = f"http://{HOST}:{port}"
        self.server = Server(command, (port,), folder / "log")
        self.server.start()

    def stop(self) -> None:
        self.server.stop()


# --- Kafka ------------------------------------------------------------------------------------

BROKER_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/logs
num.partitions=1
auto.create.topics.enable=true
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=100
log.retention.ms=-1
"""


class Kafka:
    """A broker of Kafka that is its own controller."""

    def __init__(self, folder: Path) -> None:
        jars = TOOLS / "kafka"
        if not any(jars.glob("kafka_*.jar")):
            missing("Kafka", f"run `{MAKE}`")
        java = find_java()
        if java is None:
            missing("Java 17 or 21", "run `make setup`")
        assert java is not None
        ports = {"broker": free_port(), "controller": free_port()}
        settings = folder / "server.properties"
        text = BROKER_SETTINGS.format(host=HOST, folder=folder, **ports)
        settings.write_text(text, encoding="utf-8")
        command = [str(java.home / "bin" / "java"), *java.options, "-Xmx384m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", f"{jars}/*"]
        # A name that begins with a dash would be an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        format_ = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        made = subprocess.run(
            [*command, *format_], capture_output=True, text=True, check=False, cwd=folder
        )
        if made.returncode != 0:
            pytest.fail(f"Kafka: {made.stdout}{made.stderr}", pytrace=False)
        self.address = f"{HOST}:{ports['broker']}"
        self.server = Server(
            [*command, "kafka.Kafka", str(settings)], (ports["broker"],), folder / "log"
        )
        self.server.start()

    def stop(self) -> None:
        """At once: nothing of it is kept."""
        self.server.stop(signal.SIGKILL)


# --- SeaweedFS --------------------------------------------------------------------------------

BUCKET, TABLE_BUCKET = "warehouse", "tables"


@dataclass(frozen=True)
class Identity:
    """Who asks the store, and what it lets them do."""

    name: str
    actions: tuple[str, ...]
    secret: str = "secretsecret"

    def entry(self) -> dict[str, object]:
        keys = [{"accessKey": self.name, "secretKey": self.secret}]
        return {"name": self.name, "credentials": keys, "actions": list(self.actions)}


ADMIN = Identity("admin", ("Admin", "Read", "Write", "List", "Tagging"))
#: Sees only what lies under the target's own prefix.
READER = Identity("reader", (f"Read:{BUCKET}/narrow/silver/t/*",))
#: Whose keys the tests hand out for single tables; `vending.Door` keeps them there.
VENDED = tuple(Identity(f"vended{number}", ADMIN.actions) for number in range(64))


class Seaweed:
    """SeaweedFS: an S3 store, and an Iceberg REST catalog beside it."""

    def __init__(self, folder: Path) -> None:
        weed = ROOT / ".venv" / "bin" / "weed"
        if not weed.is_file():
            missing("SeaweedFS (weed)", f"run `{MAKE}`")
        config = folder / "s3.json"
        identities = [one.entry() for one in (ADMIN, READER, *VENDED)]
        config.write_text(json.dumps({"identities": identities}), encoding="utf-8")
        names = ("master", "filer", "volume", "admin", "s3.port.lance", "s3", "s3.port.iceberg")
        ports = free_ports(names)
        options = [
            f"-{name if '.port' in name else f'{name}.port'}={port}" for name, port in ports.items()
        ]
        command = [str(weed), f"-logdir={folder}", "mini", f"-dir={folder / 'data'}"]
        command += [f"-ip={HOST}", f"-ip.bind={HOST}", *options, f"-s3.config={config}"]
        command += ["-webdav=false", f"-bucket={BUCKET}", f"-tableBucket={TABLE_BUCKET}"]
        (folder / "data").mkdir()
        self.endpoint = f"http://{HOST}:{ports['s3']}"
        #: Unsigned, for the catalog's own files.
        self.filer = f"http://{HOST}:{ports['filer']}"
        self.iceberg = f"http://{HOST}:{ports['s3.port.iceberg']}"
        keys = {"AWS_ACCESS_KEY_ID": ADMIN.name, "AWS_SECRET_ACCESS_KEY": ADMIN.secret}
        waited = (ports["s3"], ports["s3.port.iceberg"])
        self.server = Server(command, waited, folder / "log", env=keys)
        self.server.start()
        self._wait_until_ready()

    def stop(self) -> None:
        """At once: it takes seconds to say good-bye, and nothing of it is kept."""
        self.server.stop(signal.SIGKILL)

    def _wait_until_ready(self) -> None:
        """It answers on its ports before its buckets are there."""
        credential = f"{ADMIN.name}:{ADMIN.secret}"
        catalog = {"uri": self.iceberg, "warehouse": f"s3://{TABLE_BUCKET}"}
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                made = load_catalog("ready", type="rest", credential=credential, **catalog)
                made.list_namespaces()
                store = PyArrowFileIO(self.s3())
                with store.new_output(f"s3://{BUCKET}/ready").create(overwrite=True) as stream:
                    stream.write(b"")
            except (NoSuchNamespaceError, RESTError, OSError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
            else:
                return

    def s3(self, identity: Identity = ADMIN) -> dict[str, str]:
        """Give PyIceberg's properties for the store."""
        return {
            "s3.endpoint": self.endpoint, "s3.access-key-id": identity.name,
            "s3.secret-access-key": identity.secret, "s3.region": "us-east-1",
        }  # fmt: skip
