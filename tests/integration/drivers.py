"""Stand-ins for NVIDIA's side: libraries compiled here, their package, and the repository it is in."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pysequoia import SignatureMode, Tsk, sign

from tests.packages import compat_deb
from tests.servers import web_server
from torch_images.host.engine import Engine

STUBS = Path(__file__).with_name("stubs")
DRIVER = "580.95.05"
# The beginning of a program: `maps` has the path of the libcuda that the loader gives it, or "none".
FIND_LIBCUDA = """
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
    maps = [line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line]
except OSError:
    maps = ["none"]
"""


def compile_stubs(
    engine: Engine, image: str, folder: Path, notes: Mapping[str, str | None]
) -> None:
    """Compile the stub libraries with the compiler of an image.

    Into `folder`: libnvidia-ml.so.1, host.so, which always works, and for each name of `notes` a
    NAME.so with that note, which answers what COMPAT_ANSWER says.
    """
    lines = [
        "cc -shared -fPIC -o libnvidia-ml.so.1 /stubs/libnvidia-ml.c",
        """cc -shared -fPIC -Wl,-soname,libcuda.so.1 '-DANSWER="HOST_ANSWER"' -o host.so /stubs/libcuda.c""",
    ]
    for name, note in notes.items():
        header = "".join(f'#define NOTE "{_escaped(note)}"\n' if note else "")
        (folder / f"{name}.h").write_text(f'#define ANSWER "COMPAT_ANSWER"\n{header}')
        lines.append(
            f"cc -shared -fPIC -Wl,-soname,libcuda.so.1 -include {name}.h -o {name}.so "
            "/stubs/libcuda.c"
        )
    volumes = {
        str(folder): {"bind": "/out", "mode": "rw"},
        str(STUBS): {"bind": "/stubs", "mode": "ro"},
    }
    done = engine.run(
        image,
        "-ec",
        "\n".join(lines),
        entrypoint=["/bin/sh"],
        volumes=volumes,
        working_dir="/out",
        user=f"{os.getuid()}:{os.getgid()}",
        network_mode="none",
    )
    assert done.code == 0, done.output


@contextlib.contextmanager
def repository(libcuda: bytes) -> Iterator[tuple[str, str]]:
    """NVIDIA's apt repository in small: flat, signed, with one package; its URL and key.

    On loopback, with a key of its own, whose armoured form is where NVIDIA's has it.
    """
    secret = Tsk.generate("stand-in <standin@localhost>")
    below = "/compute/cuda/repos/standin/x86_64"
    files = {f"{below}/{path}": data for path, data in _flat(libcuda, secret).items()}
    with web_server(files) as (url, _):
        yield f"{url}{below}", str(secret.extract_certificate().fingerprint).upper()


def _flat(libcuda: bytes, secret: Tsk) -> dict[str, bytes]:
    """The files of the repository, by name."""
    certificate = secret.extract_certificate()
    deb = compat_deb("13.0", DRIVER, libcuda)
    name = f"cuda-compat-13-0_{DRIVER}-1_amd64.deb"
    packages = (
        f"Package: cuda-compat-13-0\nVersion: {DRIVER}-1\nArchitecture: amd64\n"
        f"Filename: ./{name}\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n"
        "Description: stand-in\n"
    ).encode()
    release = (
        "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitectures: amd64\nSHA256:\n"
        f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    ).encode()
    return {
        "Packages": packages,
        "Release": release,
        "InRelease": sign(secret.signer(), release, mode=SignatureMode.CLEAR),
        name: deb,
        f"{str(certificate.fingerprint).upper()[-8:].lower()}.pub": str(certificate).encode(),
    }


def _escaped(note: str) -> str:
    return note.replace("\\", "\\\\").replace('"', '\\"')
