"""Compare torch's libraries with the RECORDs of their wheels; name the package that replaced one.

NVIDIA's wheels for CUDA 12 and 13 have different names and install the same files: neither pip nor
`pip check` sees a conflict. As a program, it prints what it finds.
"""

import base64
import hashlib
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

SITE = "opt/venv/lib/python3.*/site-packages"
Claims = dict[str, tuple[str, str]]  # the digest and the size that a wheel gives a file, by path


def replaced(root: Path) -> list[str]:
    """A line for each package that torch needs and whose library is gone, or another package's."""
    return [line for site in root.glob(SITE) for line in _replaced(site)]


def _replaced(site: Path) -> list[str]:
    wheels = {
        _normal(wheel.metadata["Name"] or ""): wheel for wheel in distributions(path=[str(site)])
    }
    needs = (
        [_normal(line) for line in (wheels["torch"].requires or ())] if "torch" in wheels else []
    )
    claims = {name: _libraries(wheel) for name, wheel in wheels.items()}
    lines = []
    for name in sorted({"torch", "triton", *needs} & wheels.keys()):
        for path, claim in claims[name].items():
            rivals = [n for n, c in claims.items() if c.get(path, claim) != claim]
            if _is(site / path, claim, read=bool(rivals)):
                continue
            version = wheels[name].version
            rival = next((n for n in rivals if _is(site / path, claims[n][path])), "")
            what = f"{path.rpartition('/')[2]} of {name} {version}, which torch needs"
            again = f"pip install --force-reinstall --no-deps {name}=={version}"
            if rival:
                who = f"{rival} {wheels[rival].version} replaced {what}"
                lines.append(f"{who}: pip uninstall --yes {rival} && {again}")
            else:
                lines.append(f"{what}, was removed or changed: {again}")
            break
    return lines


def _normal(text: str) -> str:
    """The normal form of the name that a text begins with."""
    return re.sub("[-_.]+", "-", re.split(r"[^\w.-]", text, maxsplit=1)[0]).lower()


def _libraries(wheel: Distribution) -> Claims:
    """What a wheel's RECORD says of its libraries."""
    rows = (line.rpartition(",")[::2] for line in (wheel.read_text("RECORD") or "").splitlines())
    paths = ((*row.rpartition(",")[::2], size) for row, size in rows if ".so" in row)
    return {path.strip('"'): (digest, size) for path, digest, size in paths}


def _is(path: Path, claim: tuple[str, str], *, read: bool = True) -> bool:
    """Whether a file has the claimed size and, if it is to be read, the digest."""
    digest, size = claim
    try:
        if str(path.stat().st_size) != size:
            return False
        if not read:
            return True
        with path.open("rb") as stream:
            whole = hashlib.file_digest(stream, digest.partition("=")[0]).digest()
    except (OSError, ValueError):  # ValueError: no such digest
        return False
    return base64.urlsafe_b64encode(whole).decode().rstrip("=") == digest.partition("=")[2]


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in replaced(Path("/")))
