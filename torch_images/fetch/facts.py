"""Find the facts of a release of torch: inspect its wheel."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

from packaging.version import Version

from torch_images import fatbin
from torch_images.arch import Capability, widespread
from torch_images.config.lock_requests import FactsRequest
from torch_images.config.release import Facts
from torch_images.errors import LockError
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.tools import today
from torch_images.host.network import Network
from torch_images.host.scratch import scratch
from torch_images.inside.features import FEATURES, shows
from torch_images.locks.facts import FactsLock
from torch_images.locks.wheels import WheelLock

# The library that must have code for a GPU. Others are for single operators.
_MAIN = "libtorch_cuda.so"


def find_facts(
    item: FactsRequest,
    plain: WheelLock,
    current: FactsLock | None = None,
    *,
    network: Network,
    cache: Path,
) -> FactsLock:
    """The facts for a request; `plain` is the lock of its release's wheels.

    Returns `current` if it is of the same wheel, which is else downloaded.
    Raises NetworkError, DiskError, and LockError for an unreadable wheel.
    """
    wheel = next(w for w in plain.wheels if w.name == "torch")
    if Version(wheel.version).local not in (None, item.cuda.short):
        raise LockError(
            f"locks/{plain.name}.json has torch {wheel.version}, which is not for CUDA "
            f"{item.cuda.version}",
            "name an index in images.yaml that has wheels for this CUDA version only",
        )
    if current and current.sha256 == wheel.sha256:
        return current
    cache.mkdir(parents=True, exist_ok=True)
    with PackageIndex(network) as index, scratch(cache, ".facts-") as room:
        folder = room / "torch"
        _unpack(index.fetch(wheel, room), folder)
        code, single = _code(folder)
        facts = Facts(
            cuda=item.cuda.version,
            torch=Version(wheel.version).public,
            python=item.python,
            arches=code[_MAIN],
            features=tuple(name for name in sorted(FEATURES) if shows(folder, name)),
            platform=item.platform.name,
            lacks=_lacks(code),
            single=single,
        )
    return FactsLock(name=item.name, date=today(), sha256=wheel.sha256, facts=facts)


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack the libraries of torch's wheel into a folder, and remove the wheel."""
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                parent, _, name = info.filename.rpartition("/")
                if parent == "torch/lib" and ".so" in name:
                    info.filename = name
                    archive.extract(info, folder)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise LockError(f"{wheel.name} cannot be read: {error}") from None
    wheel.unlink()


def _code(folder: Path) -> tuple[dict[str, tuple[Capability, ...]], tuple[Capability, ...]]:
    """The architectures that each library in a folder has machine code for.

    Also returns architectures that only some kernels of the main library have code for. Leaves out
    libraries without code. Raises LockError if the main library has none.
    """
    code, single = {}, set[Capability]()
    for path in sorted({folder / _MAIN, *folder.iterdir()}):
        try:
            data = memoryview(path.read_bytes())
            section = memoryview(fatbin.section(data, ".nv_fatbin"))
            entries = [e for _, each in fatbin.containers(section) for e in each if not e.ptx]
        except (OSError, fatbin.PruneError) as error:
            raise LockError(f"torch's {path.name} cannot be read: {error}") from None
        counted = Counter(f"sm_{e.arch}{'a' if e.specific else ''}" for e in entries)
        if arches := sorted(filter(None, map(Capability.of_target, widespread(counted)))):
            code[path.name] = tuple(arches)
        if path.name == _MAIN:
            single = {Capability.of_number(e.arch) for e in entries} - {*arches}
    if _MAIN not in code:
        raise LockError(f"torch's {_MAIN} has no machine code")
    return code, tuple(sorted(single))


def _lacks(
    code: dict[str, tuple[Capability, ...]],
) -> tuple[tuple[str, tuple[Capability, ...]], ...]:
    """For each other library, the main one's architectures that run none of its machine code.

    For CUDA 13, libtorch_cuda_linalg.so has MAGMA's code for 8.0 and newer, the main library also
    for 7.5.
    """
    unserved = {
        library: tuple(a for a in code[_MAIN] if not any(a.runs(c) for c in has))
        for library, has in code.items()
    }
    return tuple((library, arches) for library, arches in unserved.items() if arches)
