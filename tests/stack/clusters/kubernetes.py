"""A stand-in for the API server of Kubernetes: a pod is a process of this machine.

It answers what Spark's own backend asks: create, list, watch, patch and delete of pods, and of what
else lies in a namespace. No image is pulled: the process is what `entrypoint.sh` of Spark's image
starts for an executor, with the environment of the pod. Folders that a pod mounts are folders here.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.stack.servers import HOST, PATIENCE_S

Item = dict[str, Any]
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_KINDS = {
    "pods": "Pod", "configmaps": "ConfigMap", "services": "Service",
    "persistentvolumeclaims": "PersistentVolumeClaim",
}  # fmt: skip


class Cluster:
    """The objects of one cluster, and the processes of its pods."""

    def __init__(self, folder: Path, java: Path, spark_home: Path) -> None:
        self._folder, self._java, self._spark_home = folder, java, spark_home
        self.items: dict[tuple[str, str, str], Item] = {}
        self.events: list[tuple[str, Item]] = []
        #: All pods that were ever made, as their makers sent them.
        self.made: list[Item] = []
        self.changed = threading.Condition()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, namespace: str, plural: str, item: Item) -> Item:
        """Keep an object; start the process of a pod."""
        name = item["metadata"]["name"]
        made = str(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        item["metadata"] |= {
            "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": made
        }  # fmt: skip
        with self.changed:
            self.items[namespace, plural, name] = item
        if plural == "pods":
            self.made.append(json.loads(json.dumps(item)))
            item["status"] = {"phase": "Pending"}
            threading.Thread(target=self._run, args=(namespace, item), daemon=True).start()
        return self._keep(item, "ADDED")

    def list(self, namespace: str, plural: str, selector: str) -> list[Item]:
        with self.changed:
            return [
                item for (space, kind, _), item in self.items.items()
                if (space, kind) == (namespace, plural) and _is_selected(item, selector)
            ]  # fmt: skip

    def patch(self, item: Item, change: Item) -> Item:
        """Merge labels and annotations, which are all that Spark changes."""
        for field in ("labels", "annotations"):
            new = change.get("metadata", {}).get(field) or {}
            item["metadata"].setdefault(field, {}).update(new)
        return self._keep(item, "MODIFIED")

    def delete(self, namespace: str, plural: str, item: Item) -> Item:
        name = item["metadata"]["name"]
        if process := self.processes.get(name):
            process.kill()
        with self.changed:
            self.items.pop((namespace, plural, name), None)
        return self._keep(item, "DELETED")

    def watch(self, namespace: str, selector: str, since: int) -> Iterator[tuple[str, Item]]:
        """Give each event of pods from a version on, as it happens; end after a pause."""
        at = since
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: len(self.events) > at, PATIENCE_S):  # noqa: B023
                    return
                kind, item = self.events[at]
            at += 1
            own = item.get("kind") == "Pod" and item["metadata"]["namespace"] == namespace
            if own and _is_selected(item, selector):
                yield kind, item

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(20)

    def _keep(self, item: Item, event: str) -> Item:
        with self.changed:
            item["metadata"]["resourceVersion"] = str(len(self.events) + 1)
            copy: Item = json.loads(json.dumps(item))
            self.events.append((event, copy))
            self.changed.notify_all()
        return copy

    def _run(self, namespace: str, pod: Item) -> None:
        """Run the process of a pod, and tell when it starts and how it ends."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        env = {one["name"]: self._value(one, pod) for one in container.get("env", ())}
        for path, place in self._mount(namespace, pod, self._folder / name).items():
            env = {key: text.replace(path, str(place)) for key, text in env.items()}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self._command(env), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**_plain_environment(), "SPARK_HOME": str(self._spark_home), **env},
                cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        self._tell(namespace, pod, _status(pod, "Running", {"running": {}}))
        code = process.wait()
        ended = {"exitCode": code if code >= 0 else 128 - code}
        phase = "Failed" if code else "Succeeded"
        self._tell(namespace, pod, _status(pod, phase, {"terminated": ended}))

    def _tell(self, namespace: str, pod: Item, status: Item) -> None:
        with self.changed:
            if (namespace, "pods", pod["metadata"]["name"]) in self.items:
                pod["status"] = status
                self._keep(pod, "MODIFIED")

    def _command(self, env: dict[str, str]) -> list[str]:
        """Give what the entry point of Spark's image does for `executor`."""
        options = sorted(
            (int(key.rpartition("_")[2]), text)
            for key, text in env.items()
            if key.startswith("SPARK_JAVA_OPT_")
        )
        memory = env["SPARK_EXECUTOR_MEMORY"]
        path = ":".join(
            filter(None, (env.get("SPARK_CONF_DIR"), f"{self._spark_home}/jars/*",
                          env.get("SPARK_EXTRA_CLASSPATH")))
        )  # fmt: skip
        words = {
            "driver-url": "SPARK_DRIVER_URL", "executor-id": "SPARK_EXECUTOR_ID",
            "cores": "SPARK_EXECUTOR_CORES", "app-id": "SPARK_APPLICATION_ID",
            "hostname": "SPARK_EXECUTOR_POD_IP", "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
            "podName": "SPARK_EXECUTOR_POD_NAME",
        }  # fmt: skip
        named = [word for key, name in words.items() for word in (f"--{key}", env[name])]
        java = [str(self._java), *(text for _, text in options), f"-Xms{memory}", f"-Xmx{memory}"]
        return [*java, "-cp", path, BACKEND, *named]

    @staticmethod
    def _value(variable: Item, pod: Item) -> str:
        if "valueFrom" not in variable:
            return str(variable.get("value") or "")
        field = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return {"status.podIP": HOST, "metadata.name": pod["metadata"]["name"]}[field]

    def _mount(self, namespace: str, pod: Item, folder: Path) -> dict[str, Path]:
        """Make the folders of a pod's volumes: empty ones, and those of a config map's files."""
        volumes = {one["name"]: one for one in pod["spec"].get("volumes", ())}
        found = {}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", ()):
            place = folder / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            found[mount["mountPath"]] = place
            if source := volumes[mount["name"]].get("configMap"):
                # A pod waits for its config map, which Spark may send after its first executor.
                key = (namespace, "configmaps", source["name"])
                with self.changed:
                    assert self.changed.wait_for(lambda key=key: key in self.items, PATIENCE_S)
                for name, text in self.items[key].get("data", {}).items():
                    (place / name).write_text(text, encoding="utf-8")
        return found


def _plain_environment() -> dict[str, str]:
    """Give a pod's process no setting of the driver's: only what starts programs."""
    return {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}


def _status(pod: Item, phase: str, state: Item) -> Item:
    container = pod["spec"]["containers"][0]
    told = {
        "name": container["name"], "image": container["image"], "imageID": "", "ready": True,
        "restartCount": 0, "state": state,
    }  # fmt: skip
    return {"phase": phase, "podIP": HOST, "containerStatuses": [told]}


def _is_selected(item: Item, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, _parts(selector)):
        if " in " in part:
            name, _, values = part.partition(" in ")
            if labels.get(name.strip()) not in values.strip(" ()").split(","):
                return False
        elif "!=" in part:
            name, _, text = part.partition("!=")
            if labels.get(name) == text:
                return False
        else:
            name, _, text = part.replace("==", "=").partition("=")
            if labels.get(name) != text:
                return False
    return True


def _parts(selector: str) -> list[str]:
    """Split a selector at commas, but for those in brackets."""
    depth, parts = 0, [""]
    for letter in selector:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class ApiServer:
    """The stand-in, listening on a free port of this machine."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        handler = type("Handler", (_Handler,), {"cluster": cluster})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._server.daemon_threads = True
        self.address = f"http://{HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cluster.stop()


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        namespace, plural, name = self._target()
        if name:
            self._one(self.cluster.items.get((namespace, plural, name)))
        elif self._asked("watch") == "true":
            self._watch(namespace)
        else:
            self._all(namespace, plural)

    def _all(self, namespace: str, plural: str) -> None:
        items = self.cluster.list(namespace, plural, self._asked("labelSelector"))
        version = {"resourceVersion": str(len(self.cluster.events))}
        self._say(200, {
            "apiVersion": "v1", "kind": f"{_KINDS[plural]}List", "metadata": version,
            "items": items,
        })  # fmt: skip

    def do_POST(self) -> None:
        namespace, plural, _ = self._target()
        self._say(201, self.cluster.create(namespace, plural, self._body()))

    def do_PATCH(self) -> None:
        found = self.cluster.items.get(self._target())
        change = self._body()
        self._one(found and self.cluster.patch(found, change))

    def do_DELETE(self) -> None:
        namespace, plural, name = self._target()
        self._body()
        found = (
            [self.cluster.items.get((namespace, plural, name))] if name
            else self.cluster.list(namespace, plural, self._asked("labelSelector"))
        )  # fmt: skip
        for item in found:
            if item is not None:
                self.cluster.delete(namespace, plural, item)
        done = {"apiVersion": "v1", "kind": "Status", "status": "Success"}
        self._one(done if found != [None] else None)

    def _watch(self, namespace: str) -> None:
        if self.headers.get("Upgrade", "").lower() == "websocket":
            # The client then asks again, with a plain request that stays open.
            self._say(200, {})
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        since = int(self._asked("resourceVersion") or len(self.cluster.events))
        with suppress(OSError):
            for kind, item in self.cluster.watch(namespace, self._asked("labelSelector"), since):
                line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def _target(self) -> tuple[str, str, str]:
        """Give namespace, kind and name; the name is empty for all of a kind."""
        words = urlsplit(self.path).path.strip("/").split("/")
        assert words[:3] == ["api", "v1", "namespaces"], self.path
        return words[3], words[4], words[5] if len(words) > 5 else ""

    def _asked(self, name: str) -> str:
        return parse_qs(urlsplit(self.path).query).get(name, [""])[0]

    def _body(self) -> Item:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return dict(json.loads(text)) if text else {}

    def _one(self, item: Item | None) -> None:
        if item is None:
            missing = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404}
            self._say(404, {**missing, "reason": "NotFound"})
        else:
            self._say(200, item)

    def _say(self, code: int, item: Item) -> None:
        text = json.dumps(item).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
