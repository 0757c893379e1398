"""Choose what the programs of a container need, and log each choice in one line.

torch-entrypoint gives it to the container's command. Shells that it did not start run this file
(shell.sh), which prints the variables as `export` lines and says nothing. Each step may fail: the
others still count, and one line says what was left out.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import cuda_runtime
import effect
from _torch_images import account, defaults, switches

Changes = tuple[dict[str, str], list[str]]
MARK = "TORCH_IMAGE_STARTED"  # shells inside a started container have all of it already


def prepare(environ: Mapping[str, str], *, says: bool = True) -> Changes:
    """The variables that the entrypoint sets, and the lines that it prints.

    A shell's start says nothing, and leaves to torch's import what the image's variables lack.
    """
    variables, lines = {MARK: "1"}, []
    steps = (
        ("libcuda was not chosen, so the loader's is used", _libcuda),
        ("variables for this user were not set", _user),
        ("the image's own variables were not read", _settings),
    )
    for what, step in steps if says else steps[:2]:
        try:
            changes, new_lines = step({**environ, **variables})
        except Exception as error:  # noqa: BLE001  whatever it is, the command starts
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            changes, new_lines = {}, [f"{what}: {problem[:200]}"]
        variables |= changes
        lines += new_lines
    return variables, [] if switches.is_on(environ, switches.QUIET) else lines


def _libcuda(environ: Mapping[str, str]) -> Changes:
    """Choose a libcuda, and make the choice effective."""
    root = Path("/")
    mode, complaint = cuda_runtime.read_mode(environ)
    chosen = cuda_runtime.decide(root, mode)
    _, changes = effect.apply(chosen.choice, chosen.host, root, environ, cuda_runtime.COMPAT_ROOT)
    return changes, [*([complaint] if complaint else []), chosen.line]


def _user(environ: Mapping[str, str]) -> Changes:
    """Give the user id what it lacks, and find out whether torch.compile can work."""
    changes = account.changes(environ, os.getuid())
    merged = {**environ, **changes}
    home, new = environ.get("HOME") or "/", merged.get("HOME", "")
    moved = home not in ("/", new) and os.path.isdir(home)
    line = f"HOME={account.shown(home)} cannot be written, so it is {new}" if moved else ""
    return changes, [line for line in (line, account.complaint(merged)) if line]


def _settings(environ: Mapping[str, str]) -> Changes:
    """The image's own variables as they are understood; torch's import applies the profile."""
    _, own, lines = defaults.profile(environ)
    return own, lines


if __name__ == "__main__":
    variables, _ = prepare(os.environ, says=False)
    sys.stdout.buffer.write(os.fsencode(effect.exports(variables)))
