"""Make an environment for each rival from its pinned requirements.

python -m benchmarks.rivals.setup DIR [NAME …]

What cannot be installed is named at the end, and the exit status is 1; the others are there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"


def main(arguments: list[str]) -> int:
    """Make the environments below the folder that is named first."""
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder, names = Path(arguments[0]), arguments[1:]
    wanted = names or sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))
    failed = [name for name in wanted if not _make(folder / name, REQUIREMENTS / f"{name}.txt")]
    for name in failed:
        sys.stderr.write(f"NOT INSTALLED: {name}; see {folder / name}.log\n")
    return 1 if failed else 0


def _make(place: Path, requirements: Path) -> bool:
    place.parent.mkdir(parents=True, exist_ok=True)
    steps = (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)],
    )
    with place.with_name(f"{place.name}.log").open("w", encoding="utf-8") as log:
        return all(
            subprocess.run(step, stdout=log, stderr=log, check=False).returncode == 0
            for step in steps
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
