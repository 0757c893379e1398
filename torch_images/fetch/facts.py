"""Find the facts of a release of torch: inspect its wheel, and find wheels of extras that fit."""

from __future__ import annotations

import datetime as dt
import gzip
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torch_images import fatbin
from torch_images.arch import Capability, widespread
from torch_images.config.extras import Extra
from torch_images.config.indexes import origin
from torch_images.config.lock_requests import LockRequest, Probe, fit_word
from torch_images.config.release import Facts, Fit
from torch_images.errors import LockError
from torch_images.fetch.needs import exports, read_needs
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.host.cache import Part, keep, used
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.scratch import scratch
from torch_images.inside.features import FEATURES, shows
from torch_images.locks.facts import FactsLock, Uses
from torch_images.locks.wheels import LockedWheel, WheelLock

# Part of uv's message about a requirement that conflicts with others.
_PIN = re.compile(r"depends on torch==([0-9]+(?:\.[0-9]+)*)")
# The library that must have code for a GPU. Others are for single operators.
_MAIN = "libtorch_cuda.so"


# The reason for wheels that were not inspected yet.
UNREAD = "not looked into yet"


class _UnreadError(Exception):
    """A wheel was not inspected yet, and may not be downloaded."""


@dataclass(frozen=True, kw_only=True)
class _Days:
    """The days of the first release of a minor version of torch, and of the next minor version.

    `until` is None if there is no next one yet; both are None for an index without dates.
    """

    since: dt.date | None
    until: dt.date | None


def find_facts(
    item: LockRequest,
    plain: WheelLock,
    held: FactsLock | None = None,
    *,
    network: Network,
    run: Runner,
    cache: Path,
    date: dt.date,
    download: bool = True,
    add: bool = False,
) -> FactsLock:
    """The facts for a request; `plain` is the lock of its release's wheels.

    Reuses the facts in `held` about wheels with the same SHA-256. Downloads any other wheel, of
    torch and of extras, because their metadata does not say what they fit. Without `download`,
    wheels of extras that were not inspected get the reason UNREAD. With `add`, everything in `held`
    stays, and only the extras that it lacks are looked for. Other images do not share these.
    Raises NetworkError, DiskError, and LockError for an unreadable wheel, or without `download` for
    a torch that was not inspected.
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
    shared = {fit.extra for fit in held.facts.fits if fit.shared} if held else None
    if held and held.sha256 != wheel.sha256:
        held = None
    cache.mkdir(parents=True, exist_ok=True)
    with (
        PackageIndex(network) as index,
        scratch(cache, ".facts-") as room,
    ):
        torch = _Torch(wheel, index, cache / Part.SYMBOLS, room, download)
        facts = held.facts if held else _own_facts(item, probe, torch)
        # An index without dates has nightly builds, and releases of the same days as the main one.
        days = index.days("torch", wheel.index) or index.days("torch")
        minor = Version(probe.torch).release[:2]
        released = _Days(
            since=_first(days, minor, later=False), until=_first(days, minor, later=True)
        )
        reader = _Reader(torch, {one.sha256: one for one in held.read} if held else {})
        finder = _Finder(item, probe, plain, released, reader, network, run, date)
        had = {*held.request} if held and add else set[str]()
        lacking = [x for x in probe.extras if fit_word(x, probe.cuda) not in had]
        fits = tuple(
            replace(finder.fit(extra), shared=shared is None or extra.name in shared)
            for extra in lacking
        )
    if held and add:
        return _joined(held, item.request, fits, tuple(reader.asked.values()))
    return FactsLock(
        name=item.name,
        date=date,
        request=item.request,
        sha256=wheel.sha256,
        facts=replace(facts, fits=fits),
        read=_ordered(reader.asked.values()),
    )


def _joined(
    held: FactsLock, request: tuple[str, ...], fits: tuple[Fit, ...], read: tuple[Uses, ...]
) -> FactsLock:
    """The facts of a file and those of more extras, with the requests for these."""
    new = {fit.extra for fit in fits}
    words = {word for word in held.request if word.partition("=")[0] not in new}
    kept = (fit for fit in held.facts.fits if fit.extra not in new)
    return replace(
        held,
        request=tuple(sorted(words.union(request))),
        facts=replace(held.facts, fits=tuple(sorted((*kept, *fits), key=lambda fit: fit.extra))),
        read=_ordered({*held.read, *read}),
    )


def _ordered(read: Iterable[Uses]) -> tuple[Uses, ...]:
    return tuple(sorted(read, key=lambda one: (one.wheel, one.sha256)))


@dataclass(frozen=True)
class _Torch:
    """The wheel of a release of torch, downloaded when it is first needed."""

    wheel: LockedWheel
    index: PackageIndex
    kept: Path
    room: Path
    download: bool

    def libraries(self) -> Path:
        """The folder with its libraries. Raises LockError without `download`."""
        folder = self.room / "torch"
        if not folder.exists():
            if not self.download:
                raise LockError(f"{self.wheel.filename} was not inspected yet", "run `invoke lock`")
            _unpack(self.index.fetch(self.wheel, self.room), folder)
        return folder

    def symbols(self) -> frozenset[str]:
        """The symbols that it exports, from the cache if they were read before."""
        path = self.kept / f"{self.wheel.sha256}.gz"
        if not path.exists():
            text = "\n".join(sorted(exports(self.libraries())))
            self.kept.mkdir(exist_ok=True)
            new = self.room / path.name
            new.write_bytes(gzip.compress(text.encode(), mtime=0))
            keep(new, path)
        return frozenset(gzip.decompress(used(path).read_bytes()).decode().split())


class _Reader:
    """The symbols that wheels of extras use: stored ones, else by inspecting the wheels now.

    `asked` has all answers by SHA-256.
    """

    def __init__(self, torch: _Torch, kept: Mapping[str, Uses]) -> None:
        self._torch, self._kept = torch, kept
        self.asked = dict[str, Uses]()

    def uses(self, wheel: LockedWheel) -> Uses:
        """The symbols that a wheel uses. Raises _UnreadError if it may not be downloaded."""
        known = self.asked.get(wheel.sha256) or self._kept.get(wheel.sha256)
        self.asked[wheel.sha256] = uses = known or self._read(wheel)
        return uses

    def day(self, wheel: LockedWheel) -> dt.date | None:
        """The day on which the index got the first file of a wheel's version; None if unknown."""
        return self._torch.index.days(wheel.name, wheel.index).get(wheel.version)

    def _read(self, wheel: LockedWheel) -> Uses:
        torch = self._torch
        if not torch.download:
            raise _UnreadError
        path = torch.index.fetch(wheel, torch.room)
        needs = read_needs(path)
        path.unlink()
        symbols = needs.cxx | needs.stable
        return Uses(
            sha256=wheel.sha256,
            wheel=wheel.filename,
            cudart=tuple(sorted(needs.cudart)),
            pins=tuple(sorted("".join(pin.split()) for pin in needs.pins if "==" in pin)),
            cxx=len(needs.cxx),
            stable=len(needs.stable),
            missing=len(symbols - torch.symbols()) if symbols else 0,
        )


@dataclass(frozen=True)
class _Finder:
    """Finds wheels of extras for a release of torch."""

    item: LockRequest
    probe: Probe
    plain: WheelLock
    released: _Days
    reader: _Reader
    network: Network
    run: Runner
    date: dt.date

    def fit(self, extra: Extra) -> Fit:
        """The newest wheels of an extra if they fit, else those from the time of the release."""
        reason = ""
        for before in dict.fromkeys((None, self.released.until)):
            try:
                chosen = self._resolve(extra, before)
            except LockError as error:
                reason = reason or _why(error.message, self.plain.versions()["torch"])
                continue
            exact = tuple(f"{wheel.name}=={wheel.version}" for wheel in chosen)
            try:
                verdicts = [self._judge(wheel) for wheel in chosen]
            except _UnreadError:
                return Fit(extra=extra.name, wheels=exact, reason=UNREAD)
            bad = [text for fits, text in verdicts if not fits]
            if not bad:
                return Fit(extra=extra.name, wheels=exact, reason="; ".join(t for _, t in verdicts))
            reason = "; ".join(bad)
        return Fit(extra=extra.name, wheels=(), reason=reason)

    def _resolve(self, extra: Extra, before: dt.date | None) -> tuple[LockedWheel, ...]:
        """The wheels of an extra, resolved together with the plain image's.

        With `before`, ignores files that the index got on that day or later.
        """
        wanted = dict(extra.wheels)[self.probe.cuda.version]
        names = [str(canonicalize_name(Requirement(word).name)) for word in wanted]
        # Wheels in the release's own index are compiled for it, and need no date.
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
        """Whether a wheel fits, and the evidence. Raises _UnreadError."""
        name, torch = f"{wheel.name} {wheel.version}", self.probe.torch
        if wheel.filename.endswith("-none-any.whl"):
            return True, f"{name} is not compiled"
        uses = self.reader.uses(wheel)
        cuda = int(self.probe.cuda.version.partition(".")[0])
        if wrong := {*uses.cudart} - {cuda}:
            return False, f"{name} is compiled for CUDA {max(wrong)}"
        if uses.pins:  # uv chose it by this requirement
            return True, f"{name} requires torch {torch}"
        if uses.missing:
            return False, f"{name} needs {uses.missing} symbols that torch {torch} lacks"
        if not uses.cxx:
            return True, f"{name} uses torch's stable interface only" if uses.stable else (
                f"{name} uses no symbol of torch's"
            )
        return self._by_day(wheel, uses)

    def _by_day(self, wheel: LockedWheel, uses: Uses) -> tuple[bool, str]:
        """Whether a wheel that uses torch's C++ is of the time of this minor version of torch."""
        name = f"{wheel.name} {wheel.version}"
        minor = ".".join(self.probe.torch.split(".")[:2])
        day = self.reader.day(wheel)
        if not day or not self.released.since:
            return False, f"the index does not say when it got {name}, which uses torch's C++"
        if day < self.released.since:
            return False, f"{name} uses torch's C++, and is older than torch {minor}"
        if self.released.until and day >= self.released.until:
            return False, f"{name} uses torch's C++, and is newer than the release after {minor}"
        return True, f"torch {minor} has all {uses.cxx} C++ symbols that {name} uses"


def _own_facts(item: LockRequest, probe: Probe, torch: _Torch) -> Facts:
    """The facts from the libraries of torch, without extras."""
    folder = torch.libraries()
    code, single = _code(folder)
    return Facts(
        cuda=probe.cuda.version,
        torch=probe.torch,
        python=item.python,
        arches=code[_MAIN],
        features=_features(folder),
        fits=(),
        platform=item.platform.name,
        lacks=_lacks(code),
        single=single,
    )


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
    lacks = []
    for library, has in code.items():
        if unserved := tuple(a for a in code[_MAIN] if not any(a.runs(c) for c in has)):
            lacks.append((library, unserved))
    return tuple(lacks)


def _features(folder: Path) -> tuple[str, ...]:
    """The features of torch's libraries, by the same evidence as the gate of compiled wheels."""
    return tuple(name for name in sorted(FEATURES) if shows(folder, name))


def _first(days: dict[str, dt.date], minor: tuple[int, ...], *, later: bool) -> dt.date | None:
    """The day of the first release of a minor version of torch; `later`: of any later one."""
    released = [(v, day) for text, day in days.items() if not (v := Version(text)).is_prerelease]
    fitting = (
        day for v, day in released if (v.release[:2] > minor if later else v.release[:2] == minor)
    )
    return min(fitting, default=None)


def _why(message: str, torch: str) -> str:
    """Why no set of wheels exists, from uv's message, which is a proof of many lines.

    If the releases of an extra require other releases of torch, that is the reason.
    """
    pins = {word.rstrip(".") for word in _PIN.findall(message)}
    if pins and torch not in pins:
        return f"they require torch {', '.join(sorted(pins, key=Version))}"
    return message
