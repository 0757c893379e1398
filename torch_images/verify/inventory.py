"""What is installed in an image: its Python and Debian packages, printed as JSON.

The image's own Python runs this file as `python3 -IBS -c SOURCE`, so it may import only the
standard library. The answer has two lists: `wheels`, each a name and a version, and `debs`, each a
name, a version, an architecture and the name of the source package. `distro` is as "debian-13".
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

# What the kernel makes; Python packages of Debian's, which are among the Debian packages; ours.
OTHERS = {"/proc", "/sys", "/dev", "/usr/lib/python3", "/usr/local/lib/torch-images"}


def wheels(root: str) -> Iterator[tuple[str, str]]:
    """The Python packages in every environment, without those that a package carries inside it."""
    for folder, names, _ in os.walk(root):
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                metadata = PathDistribution(Path(folder, name)).metadata
                if "Name" in metadata and "Version" in metadata:
                    yield metadata["Name"], metadata["Version"]
        names[:] = [n for n in names if n != "_vendor" and str(Path(folder, n)) not in OTHERS]


def debs(status: str) -> Iterator[tuple[str, str, str, str]]:
    """The packages that dpkg's list of all that it knows has as installed."""
    for paragraph in status.split("\n\n"):
        lines = (line.partition(": ") for line in paragraph.splitlines() if not line[:1].isspace())
        facts = {name: value for name, _, value in lines}
        if facts.get("Status", "").endswith(" installed"):
            source = facts.get("Source", facts["Package"]).partition(" ")[0]  # "glibc (2.41)"
            yield facts["Package"], facts["Version"], facts["Architecture"], source


if __name__ == "__main__":
    system = platform.freedesktop_os_release()
    distro = f"{system['ID']}-{system['VERSION_ID']}"
    known = Path("/var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    told = {"wheels": sorted(set(wheels("/"))), "debs": [*debs(known)], "distro": distro}
    sys.stdout.write(json.dumps(told) + "\n")
