"""Set this clone up: Python packages, Java and jars, all inside the clone.

    python3 tools/setup.py            install what is missing; at once when nothing is
    python3 tools/setup.py --check    only look at the machine
    python3 tools/setup.py --servers  after the set-up: also what the tests with servers need

This file, `bootstrap/machine.py` and `bootstrap/stamp.py` are written so that Python 2.7 can read
them: an old Python must be able to say what is wrong, or to hand over to a newer one it found.
"""

from __future__ import print_function

import os
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)

from bootstrap import machine, stamp  # noqa: E402 - needs the path set above


def main(arguments):
    only_check = "--check" in arguments
    if not arguments and stamp.is_current(ROOT):
        return 0
    python = machine.fitting_python(ROOT)
    if python and not machine.is_this(python):
        return subprocess.call([python, os.path.join(HERE, "setup.py")] + arguments)
    faults = machine.faults(ROOT, python)
    if faults:
        print(machine.report(faults), file=sys.stderr)
        return 1
    if only_check:
        print(machine.good_news(ROOT, python))
        return 0
    from bootstrap import install, servers  # Newer syntax: only a fitting Python comes here.

    if "--servers" in arguments:
        return servers.install_servers(ROOT)
    return install.install(ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
