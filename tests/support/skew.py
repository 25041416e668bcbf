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
