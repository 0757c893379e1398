"""Stand-ins for NVIDIA's side: libraries compiled here, their package, and the repository it is in."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.integration.support import debian_program
from tests.packages import compat_deb
from tests.servers import web_server
from torch_images.engine import Engine

STUBS = Path(__file__).with_name("stubs")
DRIVER = "580.95.05"


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
        network_mode="none",
    )
    assert done.code == 0, done.output


@contextlib.contextmanager
def repository(libcuda: bytes, folder: Path) -> Iterator[tuple[str, str]]:
    """NVIDIA's apt repository in small: flat, signed, with one package; its URL and key.

    On loopback, with a key of its own, whose armoured form is where NVIDIA's has it.
    """
    folder.mkdir()
    gpg = [debian_program("gpg", "gpg", folder), "--homedir", str(folder / "gpg"), "--batch"]
    (folder / "gpg").mkdir(mode=0o700)

    def run(*words: str, stdin: bytes = b"") -> bytes:
        return subprocess.run([*gpg, *words], input=stdin, capture_output=True, check=True).stdout

    run("--passphrase", "", "--quick-gen-key", "standin@localhost", "rsa2048", "sign", "never")
    listing = run("--with-colons", "--list-keys").decode()
    key = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
    deb = compat_deb("13.0", DRIVER, libcuda)
    name = f"cuda-compat-13-0_{DRIVER}-1_amd64.deb"
    packages = (
        f"Package: cuda-compat-13-0\nVersion: {DRIVER}-1\nArchitecture: amd64\n"
        f"Filename: ./{name}\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n"
        "Description: stand-in\n"
    ).encode()
    indexes = {"Packages": packages, "Packages.gz": gzip.compress(packages, mtime=0)}
    release = "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitectures: amd64\nSHA256:\n" + "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} {path}\n"
        for path, data in indexes.items()
    )
    signed = run("--clearsign", stdin=release.encode())
    files = {
        "Release": release.encode(),
        "InRelease": signed,
        name: deb,
        f"{key[-8:].lower()}.pub": run("--armor", "--export", key),
        **indexes,
    }
    below = "/compute/cuda/repos/standin/x86_64"
    with web_server({f"{below}/{path}": data for path, data in files.items()}) as (url, _):
        try:
            yield f"{url}{below}", key
        finally:
            subprocess.run(["gpgconf", "--homedir", str(folder / "gpg"), "--kill", "all"], check=False)


def _escaped(note: str) -> str:
    return note.replace("\\", "\\\\").replace('"', '\\"')
