"""The command server of a warm session, as `python -m` starts it.

It loads what commands need, and forks a process for each. It ends when its stdin does, which is a
pipe of the session's host.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

from lakehouse_backfill.adapters.system.command_channel import CommandAddress
from lakehouse_backfill.adapters.system.command_server import CommandServer
from lakehouse_backfill.cli.entry import end_process

#: What only some commands need, or what loads much for it.
_LEFT_OUT = ("lakehouse_backfill.demo", __spec__.name if __spec__ else __name__)


def main(session_folder: str, folder: str) -> None:
    """Serve until stdin ends; in a forked process, run the command."""
    # `-m` looks for modules in the folder of now first; a program looks in its own.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(sys.executable).parent)
    os.chdir(folder)
    owner = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    server = CommandServer(CommandAddress(Path(session_folder)), owner)
    load_libraries()
    if server.serve(Path(__file__).parents[1], _say_ready) is not None:
        from lakehouse_backfill.cli.main import run

        try:
            run()
        except SystemExit as ended:
            end_process(ended)
            raise


def load_libraries() -> None:
    """Load all of the program, and the libraries that its commands need."""
    from lakehouse_backfill.adapters.quality.judge import load_expectations
    from lakehouse_backfill.cli.session import (
        keep_freed_memory,
        tune_gc,
        use_system_memory,
    )

    tune_gc()
    use_system_memory()
    keep_freed_memory()
    load_expectations()
    package = import_module("lakehouse_backfill")
    for module in pkgutil.walk_packages(package.__path__, "lakehouse_backfill."):
        if not module.name.startswith(_LEFT_OUT):
            import_module(module.name)


def _say_ready() -> None:
    """Tell the host, and leave its pipe."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
