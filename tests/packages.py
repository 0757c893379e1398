"""Stand-ins for NVIDIA's compat package: a real .deb, around libraries that a test gives."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
from collections.abc import Callable, Mapping
from datetime import date

import zstandard

from torch_images.locks.debs import DebLock, LockedDeb

PACK: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "zst": zstandard.compress}
SECTION = ".note.cuda.fwd_compatibility"


def elf(note: str | None) -> bytes:
    """A 64-bit ELF file that has nothing but a section with a note, if it has one.

    The layout is that of the gABI: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
    """
    names = b"\0.shstrtab\0" + SECTION.encode() + b"\0"
    content = (note or "").encode()
    start = 64
    table = start + len(names) + len(content)
    sizes = (0, 64, 0, 0, 64, 3 if note else 2, 1)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, *sizes)

    def section(name: int, kind: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)

    sections = section(0, 0, 0, 0) + section(1, 3, start, len(names))
    sections += section(11, 7, start + len(names), len(content)) if note else b""
    return header + names + content + sections


def make_deb(
    name: str, version: str, files: Mapping[str, bytes | str], compression: str = "xz"
) -> bytes:
    """A binary package with files by path; a text is what a symbolic link points to.

    `compression` of the files is xz, as Debian has it, or zst, as Ubuntu has it.
    """
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: t <t@localhost>\n"
    )
    control += "Description: stand-in\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": lzma.compress(_tar({"control": control.encode()})),
        f"data.tar.{compression}": PACK[compression](_tar(files)),
    }
    archive = b"!<arch>\n"
    for member, data in members.items():
        archive += f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        archive += data + b"\n" * (len(data) % 2)
    return archive


def compat_deb(cuda: str, driver: str, libcuda: bytes, compression: str = "xz") -> bytes:
    """A stand-in for cuda-compat-X-Y: the same file names, with other content."""
    folder = f"usr/local/cuda-{cuda}/compat"
    package = f"cuda-compat-{cuda.replace('.', '-')}"
    files: dict[str, bytes | str] = {f"{folder}/libcuda.so.{driver}": libcuda}
    files[f"{folder}/libcuda.so.1"] = f"libcuda.so.{driver}"
    files[f"{folder}/libcuda.so"] = "libcuda.so.1"
    for library, links in {
        "libcudadebugger": ("1",),
        "libnvidia-gpucomp": (),
        "libnvidia-nvvm": ("4",),
        "libnvidia-pkcs11-openssl3": (),
        "libnvidia-ptxjitcompiler": ("1",),
    }.items():
        files[f"{folder}/{library}.so.{driver}"] = b"other"
        for link in links:
            files[f"{folder}/{library}.so.{link}"] = f"{library}.so.{driver}"
    files[f"usr/share/doc/{package}/copyright"] = b"A stand-in for NVIDIA's licence.\n"
    return make_deb(package, f"{driver}-1", files, compression)


def compat_lock(cuda: str, driver: str, data: bytes, sha256: str) -> DebLock:
    """The lock of a stand-in."""
    package = f"cuda-compat-{cuda.replace('.', '-')}"
    deb = LockedDeb(
        name=package,
        version=f"{driver}-1",
        archive="nvidia-cuda",
        path=f"{package}_{driver}-1_amd64.deb",
        size=len(data),
        sha256=sha256,
    )
    return DebLock(
        name=f"compat-cu{cuda.replace('.', '')}",
        date=date(2026, 1, 1),
        system="standin/x86_64",
        request=(package,),
        debs=(deb,),
    )


def _tar(files: Mapping[str, bytes | str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(f"./{path}")
            member.mode = 0o644
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()
