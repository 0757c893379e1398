"""Lists the Python and Debian packages that are installed in an image, as JSON.

The image's own Python runs this file as `python3 -IBS -c SOURCE`, so it may import only the
standard library. The output has two lists, `wheels` (name, version) and `debs` (name, version,
architecture, name of the source package), and `distro`, such as "debian-13".
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

# Kernel file systems; Debian's Python packages, which `debs` lists; this project's own files.
OTHERS = {"/proc", "/sys", "/dev", "/usr/lib/python3", "/usr/local/lib/torch-images"}


def wheels(root: str) -> Iterator[tuple[str, str]]:
    """The Python packages in every environment, without packages vendored inside others."""
    for folder, names, _ in os.walk(root):
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                metadata = PathDistribution(Path(folder, name)).metadata
                if "Name" in metadata and "Version" in metadata:
                    yield metadata["Name"], metadata["Version"]
        names[:] = [n for n in names if n != "_vendor" and str(Path(folder, n)) not in OTHERS]


def debs(status: str) -> Iterator[tuple[str, str, str, str]]:
    """The packages marked as installed in dpkg's status file."""
    for paragraph in status.split("\n\n"):
        lines = (line.partition(": ") for line in paragraph.splitlines() if not line[:1].isspace())
        facts = {name: value for name, _, value in lines}
        if facts.get("Status", "").endswith(" installed"):
            source = facts.get("Source", facts["Package"]).partition(" ")[0]  # "glibc (2.41)"
            yield facts["Package"], facts["Version"], facts["Architecture"], source


if __name__ == "__main__":
    system = platform.freedesktop_os_release()
    distro = f"{system['ID']}-{system.get('VERSION_ID', system['VERSION_CODENAME'])}"
    known = Path("/var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    facts = {"wheels": sorted(set(wheels("/"))), "debs": [*debs(known)], "distro": distro}
    sys.stdout.write(json.dumps(facts) + "\n")
