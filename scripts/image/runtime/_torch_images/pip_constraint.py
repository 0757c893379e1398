"""Keep pip to the image's constraints, whatever its environment and its settings are.

PIP_CONSTRAINT does so unless sudo, `env -i` or --isolated drops it, or a user's own value replaces
it; and it hides a constraint in a user's pip.conf. So the Python of /opt/venv adds them to pip's
command line, where pip joins them with all others. An empty PIP_CONSTRAINT lifts them.

It runs at each start of Python, before account.py lifts the build constraint: see there.
"""

import os
import sys
from collections.abc import MutableMapping

FILE = "/usr/share/torch-images/constraints.txt"
VARIABLE, BUILDS = "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"
INSTALL = ("download", "install", "lock", "wheel")  # the commands that take constraints
OTHERS = (
    *("cache", "check", "completion", "config", "debug", "freeze", "hash", "help", "index"),
    *("inspect", "list", "search", "show", "uninstall"),
)


def at_start() -> None:
    """Change the command line and the environment of this Python if it is to run pip."""
    if runs_pip(sys.orig_argv, sys.argv) and os.access(FILE, os.R_OK):
        constrain(sys.argv, os.environ)


def runs_pip(original: list[str], command: list[str]) -> bool:
    """Whether Python runs pip. `original` is its whole command line, `command` is sys.argv."""
    if not 0 < len(command) <= len(original):  # Python is part of another program
        return False
    name = original[-len(command)].rpartition("/")[2].removeprefix("-m")
    if name == "__pip-runner__.py":  # the pip of another Python was told to install into this one
        return "_PIP_RUNNING_IN_SUBPROCESS" in os.environ
    return name.rstrip(".0123456789") == "pip"


def constrain(command: list[str], environ: MutableMapping[str, str]) -> None:
    """Add the constraints to a command line of pip's, and the build constraints to its environment.

    Those of an empty variable stay lifted.
    """
    place = next((n for n, word in enumerate(command) if n and word in INSTALL + OTHERS), 0)
    if not place or command[place] in OTHERS:
        return
    if environ.get(BUILDS) != "":
        environ[BUILDS] = " ".join(dict.fromkeys([FILE, *environ.get(BUILDS, "").split()]))
    if environ.get(VARIABLE) != "":
        if environ.get(VARIABLE) == FILE:  # or pip would not read pip.conf's
            del environ[VARIABLE]
        command[place + 1 : place + 1] = ["--constraint", FILE]
