"""A clock that is off for a whole process: that of Python and of Java, and of what it starts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def build_skew(folder: Path) -> str:
    """Build the library in the folder; preloaded, it puts the clock off by SKEW_S seconds."""
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is missing here: apt-get install gcc"
    made, source = folder / "skew.so", Path(__file__).with_name("skew.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return str(made)


class ChangingSkew:
    """How far the clock of processes with this `environment` is off, for as long as they run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "skew"
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": build_skew(folder), "SKEW_FILE": str(self._file)}

    def set(self, seconds: int) -> None:
        """Put their clocks off by this many seconds from now on."""
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))
