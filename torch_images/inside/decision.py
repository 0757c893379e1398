"""Decide which libcuda a container uses: the host's, or the image's newer compat library.

This module only decides, at each start of a container and for `./inv pick`. The
host's library is used wherever it suffices. A compat library that is older than the kernel driver
fails with error 803, and one on a GPU that it does not support with 804 (measured on an H200,
driver 580.159.04; https://docs.nvidia.com/deploy/cuda-compatibility/).
"""

from dataclasses import dataclass, replace

# The libcuda of a process: the host's, the image's compat library, the one that NVIDIA's container
# toolkit has put before both, or none.
HOST, COMPAT, TOOLKIT, NONE = "host", "compat", "toolkit", "none"
AUTO, ON, OFF = "auto", "on", "off"
MODES = (AUTO, ON, OFF)

# The brands of GPUs, as messages name them: nvmlBrandType_t of nvml.h. The list of devices in a
# compat library's note uses the same numbers.
BRANDS = {
    0: "unknown brand",
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "GRID",
    5: "GeForce",
    6: "Titan",
    7: "vApps",
    8: "vPC",
    9: "vCS",
    10: "vWS",
    11: "cloud gaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
}
GEFORCE, NVIDIA = 5, 14  # data-centre GPUs answer 14
# The brands in the note of every compat library seen, such as 570.211.01 and 580.95.05.
COMPAT_BRANDS = (1, 2, 7, 8, 9, 10, 11, 12, 13, 14)

NO_DEVICE, TOO_OLD, MISMATCH, NOT_ON_DEVICE = 100, 35, 803, 804
BROKEN = -1  # the library cannot even be loaded

# Values of CUresult (cuda.h) and what they mean to a user.
ERRORS = {
    BROKEN: "the library cannot be loaded",
    2: "the GPU's memory is full",
    3: "CUDA could not be initialised",
    TOO_OLD: "the driver is too old for this CUDA",
    46: "the GPU is busy or in exclusive use",
    NO_DEVICE: "no GPU is visible",
    101: "the GPU is not usable",
    802: "the system is not ready; on NVSwitch machines the host's fabric manager must run",
    MISMATCH: "the kernel driver is newer than this libcuda, or of a branch it does not support",
    NOT_ON_DEVICE: "compat libraries are for data-centre and professional GPUs only",
    999: "an unknown error of the driver; `dmesg` of the host may say more",
}
# Where the engine gives GPUs by the Container Device Interface. A container cannot see the engine.
_CDI = "--device nvidia.com/gpu=all"
# Errors that say that a GPU is occupied. They do not show that the library is wrong.
_OCCUPIED = (2, 46)
_NONE_HERE = (TOO_OLD, "this image has no compat library")


@dataclass(frozen=True)
class Sister:
    """An image with a compat library, such as `image` "torch-cu130:compat", for an image without.

    `branches` are the older driver branches that the library is made for.
    """

    image: str
    branches: tuple[int, ...]


@dataclass(frozen=True)
class Release:
    """The CUDA version of an image, such as `cuda` "13.0".

    `driver` is the oldest driver that runs it natively. Drivers from `floor` on run it by minor
    version compatibility, which cannot compile PTX at run time. `page` is the address of a page
    that finds images for a host, "" if no message may name it.
    """

    cuda: str
    driver: str
    floor: str
    page: str = ""
    sister: Sister | None = None


@dataclass(frozen=True)
class Note:
    """The driver branches and GPU brands that a compat library supports, by its own ELF note."""

    branches: tuple[int, ...]
    brands: tuple[int, ...]


@dataclass(frozen=True)
class Library:
    """A libcuda that is not the host's: its folder, version ("" if unreadable) and note."""

    folder: str
    version: str
    note: Note | None


@dataclass(frozen=True)
class Device:
    """A GPU: its name and its brand, a key of BRANDS, as NVML reports them.

    `capability`: its compute capability, such as "9.0", None if NVML does not say it.
    `driver`: the oldest driver branch that supports it, such as "520", "" if unknown.
    """

    name: str
    brand: int
    capability: str | None = None
    driver: str = ""


@dataclass(frozen=True)
class Host:
    """What a container can see of its host.

    `driver`: version of the kernel driver, "" if it could not be read.
    `library`: path of the host's libcuda, "" if none was mounted.
    `nodes`: whether there are device files of GPUs.
    `devices`: the GPUs that NVML counts, None if it was not asked or does not answer.
    `wsl`: whether this is WSL2.
    `toolkit`: the compat library that NVIDIA's container toolkit has put first, None if it did not.
    `apptainer`: whether Apptainer runs the container; it takes --nv where Docker takes --gpus.
    """

    driver: str = ""
    library: str = ""
    nodes: bool = False
    devices: tuple[Device, ...] | None = None
    wsl: bool = False
    toolkit: Library | None = None
    apptainer: bool = False


@dataclass(frozen=True)
class Choice:
    """The libcuda to use, whether CUDA works with it, and the reason in one line.

    `library`: HOST, COMPAT, TOOLKIT or NONE.
    `folder`: where the loader must look first, "" if nothing needs to change.
    `tentative`: whether a probe must confirm the choice first.
    `code`: the CUDA error that stands for the cause, 0 for none.
    `driver`, `image`: the driver version and the image that would work instead, "" for none.
    `page`: the address of a page that may find an image, "" for none.
    """

    library: str
    works: bool
    reason: str
    folder: str = ""
    tentative: bool = False
    code: int = 0
    driver: str = ""
    image: str = ""
    page: str = ""


@dataclass(frozen=True)
class Probe:
    """The result of a trial of a libcuda.

    `code`: the CUDA error, 0 for success, BROKEN if it is not CUDA's, None if there was no answer.
    `step`: the call that failed. `detail`: a message about it. `loaded`: the file that was tried.
    """

    code: int | None
    step: str = ""
    detail: str = ""
    loaded: str = ""


def number(version: str) -> tuple[int, ...]:
    """A driver version as numbers, for comparison; () if it is not a version."""
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(p.isdigit() for p in parts) else ()


def newer_or_equal(version: str, least: str) -> bool:
    """Whether the driver version `version` is `least` or newer."""
    return number(version) >= number(least)


def choose(host: Host, image: Release, compat: Library | None, mode: str = AUTO) -> Choice:
    """The libcuda for a container."""
    given = _absent(host) or _unsupported(host) or _sufficient(host, image)
    if mode == ON and not host.wsl and (given is None or (given.works and given.library == HOST)):
        if compat:
            return _tentative(compat, "CUDA_COMPAT=on asks for it")
        plain = given or choose(host, image, None)
        said = _NONE_HERE[1] in plain.reason
        return plain if said else replace(plain, reason=f"{_NONE_HERE[1]}; {plain.reason}")
    if given:
        return given
    if mode == OFF:
        return _old_driver(host, image, (0, "CUDA_COMPAT=off"))
    return _newer_library(host, image, compat)


def confirm(choice: Choice, probe: Probe, host: Host, image: Release) -> Choice:
    """The final choice after the trial of a tentative one: the host's library if it failed."""
    sure = replace(choice, tentative=False)
    if probe.code == 0:
        return sure
    if probe.code is None and (host.devices or not newer_or_equal(host.driver, image.floor)):
        return replace(sure, reason=f"{choice.reason}; not proved, the trial took too long")
    if probe.code is None:  # the GPUs are unknown, and the host's library works: it is safer
        return _old_driver(host, image, (0, "no trial of the compat library ended in time"))
    if probe.code in _OCCUPIED:
        return replace(sure, reason=f"{choice.reason}; not proved, {ERRORS[probe.code]}")
    failure = f"the compat library fails: {describe(probe)}"
    plain = _sufficient(host, image)
    if plain:
        return replace(plain, reason=f"{failure}; {plain.reason}", code=probe.code)
    return _old_driver(host, image, (probe.code, failure))


def describe(probe: Probe) -> str:
    """A failed trial in words."""
    words = ERRORS.get(probe.code or 0, "an error of the driver")
    number_of_it = f"{probe.code} at {probe.step}, " if (probe.code or 0) > 0 else ""
    return f"{number_of_it}{words}" + (f" ({probe.detail})" if probe.detail else "")


def sentence(choice: Choice, host: Host, image: Release, compat: Library | None) -> str:
    """One line: what was chosen and why, or why CUDA cannot work and what to do about it."""
    if choice.library == NONE and not _has_gpu(host):
        return choice.reason
    names = {
        HOST: f"the host's driver{f' {host.driver}' if host.driver else ''}",
        COMPAT: f"the compat library{f' {compat.version}' if compat and compat.version else ''}",
        TOOLKIT: "the compat library that NVIDIA's toolkit mounted",
    }
    if choice.works:
        return f"CUDA {image.cuda} uses {names[choice.library]}: {choice.reason}"
    remedies = []
    if choice.driver:
        remedies.append(f"driver {choice.driver} or newer would do")
    if choice.image:
        remedies.append(f"so would {choice.image}, with NVIDIA's compat library")
    if choice.page:
        remedies.append(f"for an image that suits the driver, see {choice.page}")
    return "; ".join([f"CUDA {image.cuda} cannot work: {choice.reason}", *remedies])


def _has_gpu(host: Host) -> bool:
    """Whether anything of a GPU reached the container."""
    return bool(host.nodes or host.library or host.devices or host.wsl)


def _absent(host: Host) -> Choice | None:
    """The choice if no GPU can be used, whatever the driver; None if one may be usable."""
    problem = ""
    if not _has_gpu(host):
        there = f", although the host has driver {host.driver}" if host.driver else ""
        option = "--nv" if host.apptainer else f"--gpus all, or {_CDI} where Docker uses CDI"
        problem = f"No GPU in this container{there}: PyTorch runs on the CPU; "
        problem += f"to use a GPU, start it with {option}"
    elif host.devices == ():
        problem = f"no GPU is visible; see NVIDIA_VISIBLE_DEVICES, and --gpus or {_CDI}"
        if host.driver:
            problem += f"; or driver {host.driver} does not support the GPU"
    elif not host.library:
        remedy = "NVIDIA_DRIVER_CAPABILITIES must have compute"
        remedy = "start it with --nv" if host.apptainer else remedy
        problem = f"the host's libcuda was not mounted; {remedy}"
    return Choice(NONE, works=False, reason=problem, code=NO_DEVICE) if problem else None


def _unsupported(host: Host) -> Choice | None:
    """The choice if the kernel driver is older than each GPU; None if it supports one of them.

    A compat library is no kernel driver, so it changes nothing.
    """
    first = [device.driver for device in host.devices or ()]
    driver = number(host.driver)
    if not driver or not all(first) or not first or driver >= min(map(number, first)):
        return None
    names = " and ".join(dict.fromkeys(device.name for device in host.devices or ()))
    reason = f"driver {host.driver} does not support {names}, and no compat library changes that"
    oldest = min(first, key=number)
    return Choice(HOST, works=False, reason=reason, code=TOO_OLD, driver=oldest)


def _sufficient(host: Host, image: Release) -> Choice | None:
    """The host's library if it suffices, else None."""
    if host.wsl:
        return _host(host, "WSL2 brings the driver of Windows, used as it is")
    if not number(host.driver):
        return _host(host, "its version cannot be read, so it is left alone")
    if newer_or_equal(host.driver, image.driver):
        return _host(host, f"it runs CUDA {image.cuda} natively")
    return None


def _host(host: Host, reason: str) -> Choice:
    """The host's library. `folder` puts it first if the toolkit has put another before it."""
    folder = host.library.rpartition("/")[0] if host.toolkit else ""
    return Choice(HOST, works=True, reason=reason, folder=folder)


def _newer_library(host: Host, image: Release, compat: Library | None) -> Choice:
    """A compat library for a driver that is too old, or the host's if none can work."""
    obstacle = _obstacle(host, compat)
    if compat and not obstacle:
        reason = f"driver {host.driver} is older than CUDA {image.cuda}'s {image.driver}"
        return _tentative(compat, reason)
    if host.toolkit and not compat and not _obstacle(host, host.toolkit):
        reason = "NVIDIA's container toolkit chose it on the host"
        return Choice(TOOLKIT, works=True, reason=reason)
    return _old_driver(host, image, obstacle or _NONE_HERE)


def _tentative(compat: Library, reason: str) -> Choice:
    """The compat library, which a trial must confirm."""
    return Choice(COMPAT, works=True, reason=reason, folder=compat.folder, tentative=True)


def _old_driver(host: Host, image: Release, obstacle: tuple[int, str]) -> Choice:
    """The host's library although it is too old for native CUDA, with the limits of that.

    `obstacle` is the CUDA error and the reason why no compat library is used.
    """
    code, why = obstacle
    if newer_or_equal(host.driver, image.floor):
        limits = "by minor-version compatibility; Numba and CuPy raw kernels fail"
        plain = _host(host, f"{why}; it runs CUDA {image.cuda} {limits}")
        return replace(plain, code=code if code != TOO_OLD else 0)
    sister = image.sister if obstacle == _NONE_HERE else None
    if sister and _obstacle(host, Library("", "", Note(sister.branches, COMPAT_BRANDS))):
        sister = None
    return Choice(
        HOST,
        works=False,
        reason=f"driver {host.driver} is too old, and {why}",
        code=code or TOO_OLD,
        driver=image.driver,
        image=sister.image if sister else "",
        page="" if sister else image.page,
    )


def _obstacle(host: Host, library: Library | None) -> tuple[int, str] | None:
    """CUDA error and reason why a compat library cannot work here; None if none is known."""
    if library is None:
        return _NONE_HERE
    if number(library.version) and not newer_or_equal(library.version, host.driver):
        return (MISMATCH, f"the compat library {library.version} is older still (error 803)")
    if library.note is None:
        return None  # the trial decides
    branch = number(host.driver)[0]
    if branch not in library.note.branches:
        known = ", ".join(map(str, library.note.branches))
        return (
            MISMATCH,
            f"the compat library is for branches {known}, not {branch} (error 803)",
        )
    for device in host.devices or ():
        if device.brand and device.brand not in library.note.brands:
            brand = BRANDS.get(device.brand, f"brand {device.brand}")
            words = f"compat libraries do not run on {device.name} ({brand}, error 804)"
            if any(other.brand in library.note.brands for other in host.devices or ()):
                words += "; without it, see NVIDIA_VISIBLE_DEVICES, they run on the others"
            return (NOT_ON_DEVICE, words)
    return None
