"""Find the facts of a release of torch: read its wheel, and try which wheels of extras fit."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images import fatbin
from torch_images.arch import Capability, widespread
from torch_images.config.extras import Extra
from torch_images.config.indexes import origin
from torch_images.config.lock_requests import LockRequest, Probe
from torch_images.config.release import Facts, Fit
from torch_images.errors import LockError
from torch_images.fetch.needs import Needs, exports, read_needs
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.scratch import scratch
from torch_images.locks.facts import FactsLock
from torch_images.locks.wheels import LockedWheel, WheelLock
from torch_images.project import project_root

# What uv says of a requirement that no other one can go with.
_PIN = re.compile(r"depends on torch==([0-9]+(?:\.[0-9]+)*)")
# The library that a GPU needs code in. Others are for single operators.
_MAIN = "libtorch_cuda.so"


@dataclass(frozen=True, kw_only=True)
class _Torch:
    """A release of torch: when it and the next minor release came, and what its libraries export.

    `since` is the day of the first release of its minor version, `until` that of the next one, None
    where there is none yet. Both are None for an index without dates.
    """

    since: dt.date | None
    until: dt.date | None
    symbols: frozenset[str]


def find_facts(
    item: LockRequest,
    plain: WheelLock,
    *,
    network: Network,
    run: Runner,
    cache: Path,
    date: dt.date,
) -> FactsLock:
    """The facts that a request asks for; `plain` is the lock of its release's wheels.

    It downloads the wheel of torch, and those of extras whose metadata does not say what they fit.
    Raises NetworkError, DiskError, and LockError for a wheel that cannot be read.
    """
    probe = item.probe
    assert probe
    wheel = next((w for w in plain.wheels if w.name == "torch"), None)
    if wheel is None or wheel.version.partition("+")[0] != probe.torch:
        raise LockError(
            f"locks/{plain.name}.txt has no torch {probe.torch}",
            f"run `invoke lock --select {plain.name}`",
        )
    built_for = Version(wheel.version).local
    if built_for not in (None, probe.cuda.short):
        raise LockError(
            f"locks/{plain.name}.txt has torch {wheel.version}, which is not for CUDA "
            f"{probe.cuda.version}",
            "name an index in images.yaml that has wheels for this CUDA version only",
        )
    cache.mkdir(parents=True, exist_ok=True)
    with (
        PackageIndex(network) as index,
        scratch(cache, ".facts-") as room,
    ):
        folder = room / "torch"
        _unpack(index.fetch(wheel, room), folder)
        # An index without dates has, beside nightly builds, the releases of the main one's days.
        days = index.days("torch", wheel.index) or index.days("torch")
        minor = Version(probe.torch).release[:2]
        torch = _Torch(
            since=_first(days, minor, later=False),
            until=_first(days, minor, later=True),
            symbols=exports(folder),
        )
        finder = _Finder(item, probe, plain, torch, index, network, run, date, room)
        code, single = _code(folder)
        facts = Facts(
            cuda=probe.cuda.version,
            torch=probe.torch,
            python=item.python,
            arches=code[_MAIN],
            features=_features(folder),
            fits=tuple(finder.fit(extra) for extra in probe.extras),
            platform=item.platform.name,
            lacks=_lacks(code),
            single=single,
        )
    return FactsLock(
        name=item.name, date=date, request=item.request, sha256=wheel.sha256, facts=facts
    )


@dataclass(frozen=True)
class _Finder:
    """Tries wheels of extras beside a release of torch."""

    item: LockRequest
    probe: Probe
    plain: WheelLock
    torch: _Torch
    index: PackageIndex
    network: Network
    run: Runner
    date: dt.date
    scratch: Path

    def fit(self, extra: Extra) -> Fit:
        """The newest wheels of an extra that fit, else those from the time of the release."""
        reason = ""
        for before in dict.fromkeys((None, self.torch.until)):
            try:
                chosen = self._resolve(extra, before)
            except LockError as error:
                reason = reason or _why(error.message, self.plain.versions()["torch"])
                continue
            verdicts = [self._judge(wheel) for wheel in chosen]
            bad = [text for fits, text in verdicts if not fits]
            if not bad:
                exact = tuple(f"{wheel.name}=={wheel.version}" for wheel in chosen)
                return Fit(extra=extra.name, wheels=exact, reason="; ".join(t for _, t in verdicts))
            reason = "; ".join(bad)
        return Fit(extra=extra.name, wheels=(), reason=reason)

    def _resolve(self, extra: Extra, before: dt.date | None) -> tuple[LockedWheel, ...]:
        """The wheels that an extra names, resolved beside the plain image's.

        With `before`, those that the index got on that day or later are left out.
        """
        wanted = dict(extra.wheels)[self.probe.cuda.version]
        names = [str(canonicalize_name(Requirement(word).name)) for word in wanted]
        # What the release's own index has was compiled for it, and need not have a date.
        dated = [name for name in names if not origin(name, self.item.index)]
        days = dict.fromkeys(dated, before) if before else {}
        if not extra.in_step:
            lock = self._lock(extra, wanted, days)
        else:
            days = {name: day for name, day in days.items() if name == names[0]}
            first = self._lock(extra, wanted[:1], days).versions()[names[0]]
            minor = ".".join(map(str, Version(first).release[:2]))
            lock = self._lock(
                extra, (f"{names[0]}=={first}", *(f"{n}=={minor}.*" for n in names[1:])), days
            )
        return tuple(wheel for wheel in lock.wheels if wheel.name in names)

    def _lock(self, extra: Extra, wanted: tuple[str, ...], before: dict[str, dt.date]) -> WheelLock:
        kept = (f"{w.name}=={w.version}" for w in self.plain.wheels if w.name not in extra.replaces)
        asked = Requirements(
            name=extra.name,
            words=(*self.plain.request, *wanted),
            python=self.item.python,
            platform=self.item.platform,
            date=self.date,
            constraints=tuple(kept),
            before=before,
        )
        return resolve(asked, network=self.network, run=self.run, index=self.item.index)

    def _judge(self, wheel: LockedWheel) -> tuple[bool, str]:
        """Whether a wheel fits, and what shows it."""
        name, torch = f"{wheel.name} {wheel.version}", self.probe.torch
        if wheel.filename.endswith("-none-any.whl"):
            return True, f"{name} is not compiled"
        needs = read_needs(self.index.fetch(wheel, self.scratch))
        (self.scratch / wheel.filename).unlink()
        cuda = int(self.probe.cuda.version.partition(".")[0])
        if wrong := needs.cudart - {cuda}:
            return False, f"{name} is compiled for CUDA {max(wrong)}"
        if any("==" in pin for pin in needs.pins):  # uv has chosen it for that
            return True, f"{name} requires torch {torch}"
        missing = sorted((needs.cxx | needs.stable) - self.torch.symbols)
        if missing:
            return False, f"{name} needs {len(missing)} symbols that torch {torch} lacks"
        if not needs.cxx:
            return True, f"{name} uses torch's stable interface only" if needs.stable else (
                f"{name} uses no symbol of torch's"
            )
        return self._by_day(wheel, needs)

    def _by_day(self, wheel: LockedWheel, needs: Needs) -> tuple[bool, str]:
        """Whether a wheel that uses torch's C++ came between its minor release and the next."""
        name = f"{wheel.name} {wheel.version}"
        minor = ".".join(self.probe.torch.split(".")[:2])
        day = self.index.days(wheel.name, wheel.index).get(wheel.version)
        if not day or not self.torch.since:
            return False, f"the index does not say when it got {name}, which uses torch's C++"
        if day < self.torch.since:
            return False, f"{name} uses torch's C++, and is older than torch {minor}"
        if self.torch.until and day >= self.torch.until:
            return False, f"{name} uses torch's C++, and is newer than the release after {minor}"
        return True, f"torch {minor} has all {len(needs.cxx)} C++ symbols that {name} uses"


def _unpack(wheel: Path, folder: Path) -> None:
    """The libraries of torch's wheel, in a folder. The wheel itself is removed."""
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

    Also those that the main library has further code for, in some of its kernels. Libraries without
    any are left out. Raises LockError if that is the main one.
    """
    found, single = {}, set[Capability]()
    for path in sorted({folder / _MAIN, *folder.iterdir()}):
        try:
            data = memoryview(path.read_bytes())
            section = memoryview(fatbin.section(data, ".nv_fatbin"))
            entries = [e for _, held in fatbin.containers(section) for e in held if not e.ptx]
        except (OSError, fatbin.PruneError) as error:
            raise LockError(f"torch's {path.name} cannot be read: {error}") from None
        counted = Counter(f"sm_{e.arch}{'a' if e.specific else ''}" for e in entries)
        if arches := sorted(filter(None, map(Capability.of_target, widespread(counted)))):
            found[path.name] = tuple(arches)
        if path.name == _MAIN:
            single = {Capability.of_number(e.arch) for e in entries} - {*arches}
    if _MAIN not in found:
        raise LockError(f"torch's {_MAIN} has no machine code")
    return found, tuple(sorted(single))


def _lacks(
    code: dict[str, tuple[Capability, ...]],
) -> tuple[tuple[str, tuple[Capability, ...]], ...]:
    """For each other library, the main one's architectures that run none of its machine code.

    libtorch_cuda_linalg.so of CUDA 13 has MAGMA's for 8.0 and newer, the main library for 7.5, too.
    """
    lacks = []
    for library, has in code.items():
        if unserved := tuple(a for a in code[_MAIN] if not any(a.runs(c) for c in has)):
            lacks.append((library, unserved))
    return tuple(lacks)


def _features(folder: Path) -> tuple[str, ...]:
    """The features that torch's libraries show, by the evidence of the gate for compiled ones."""
    source = project_root() / "scripts" / "image" / "source"
    evidence = json.loads((source / "features.json").read_text())
    # No part of this package, since images run it.
    spec = importlib.util.spec_from_file_location("torch_images_gate", source / "gate.py")
    assert spec
    assert spec.loader
    gate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gate)
    return tuple(name for name in sorted(evidence) if gate.shows(folder, evidence[name]))


def _first(days: dict[str, dt.date], minor: tuple[int, ...], *, later: bool) -> dt.date | None:
    """The day of the first release of a minor version of torch; `later`: of any later one."""
    released = [(v, day) for text, day in days.items() if not (v := Version(text)).is_prerelease]
    fitting = (
        day for v, day in released if (v.release[:2] > minor if later else v.release[:2] == minor)
    )
    return min(fitting, default=None)


def _why(message: str, torch: str) -> str:
    """Why no set of wheels exists, from uv's message, which is a proof of many lines.

    Where the releases of an extra require other releases of torch, those are the reason.
    """
    pins = {word.rstrip(".") for word in _PIN.findall(message)}
    if pins and torch not in pins:
        return f"they require torch {', '.join(sorted(pins, key=Version))}"
    return message
