"""Which libcuda each kind of host gets: the table that unit tests run on facts laid out as files,
and integration tests in real containers, with stub libraries.
"""

from __future__ import annotations

from dataclasses import dataclass

# What compat 580.95.05 says of itself (read on a machine that has it), and a like one for 12.8.
DEVICES = "[1,2,7,8,9,10,11,12,13,14]"
NOTES = {
    "13.0": f'{{"format":1,"CUDA version":"13.0","driver":[535,550,565,570,575,580],"device":{DEVICES}}}',
    "12.8": f'{{"format":1,"CUDA version":"12.8","driver":[470,535,550,560,565,570],"device":{DEVICES}}}',
}
VERSIONS = {"13.0": "580.95.05", "12.8": "570.211.01"}

# nvmlBrandType_t once more, on purpose: the table must not follow torch_images/inside/decision.py.
TESLA, GEFORCE, NVIDIA, UNKNOWN = 2, 5, 14, 0
ROOT, READ_ONLY, USER, USER_READ_ONLY = "root", "root, read-only", "user", "user, read-only"
APPTAINER = "/.singularity.d/libs"
GOOGLES = "/usr/local/nvidia/lib64"
NEEDS_580 = "driver 580.65.06 or newer would do"
# What follows it: the same image with a compat library, or the page that finds images.
SISTER = f"{NEEDS_580}; so would torch-cu130:compat, with NVIDIA's compat library"
PAGE = f"{NEEDS_580}; for an image that suits the driver, see https://github.com/"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A host and an image, and what the start must choose and say.

    `source` is where the driver's version can be read. `init`, `context` and `memory` are what the
    compat library answers; "hang" is no answer, "broken" a file that is no library. `note` "" is a
    library without one. `says` are parts of the line on standard error, `how` how the choice is
    made effective. `library` is whether the host's libcuda is mounted, or the folder where it is,
    `listed` whether LD_LIBRARY_PATH names that folder.
    """

    id: str
    cuda: str = "13.0"
    driver: str = ""
    source: str = "open"
    gpus: tuple[int, ...] | str = (TESLA,)
    library: bool | str = True
    listed: bool = True
    node: bool = False
    wsl: bool = False
    compat: bool = True
    note: str | None = None
    mode: str = ""
    answer: str = "0 0 0"
    runs_as: str = ROOT
    toolkit: bool = False
    stale: str = ""
    chosen: str
    works: bool = True
    says: tuple[str, ...] = ()
    how: str = "nothing to change"

    @property
    def folder(self) -> str:
        """Where the host's libraries are mounted."""
        return self.library if isinstance(self.library, str) else "/usr/lib/x86_64-linux-gnu"

    @property
    def compat_note(self) -> str:
        """The note in its compat library."""
        return NOTES[self.cuda] if self.note is None else self.note


def compat(id: str, driver: str, **more: object) -> Row:  # noqa: A002
    """A row in which the compat library is chosen and root makes it effective."""
    fields: dict[str, object] = {"chosen": "compat", "how": "loader cache"}
    return Row(id=id, driver=driver, **{**fields, **more})  # type: ignore[arg-type]


def host(id: str, driver: str, **more: object) -> Row:  # noqa: A002
    """A row in which the host's library is chosen, and nothing needs to change for it."""
    return Row(id=id, driver=driver, **{"chosen": "host", **more})  # type: ignore[arg-type]


def refused(id: str, driver: str, *says: str, **more: object) -> Row:  # noqa: A002
    """A row in which CUDA cannot work, and the line says why and what would do."""
    fields: dict[str, object] = {"chosen": "host", "works": False}
    return Row(id=id, driver=driver, says=("cannot work", *says), **{**fields, **more})  # type: ignore[arg-type]


TABLE = (
    # No GPU at all.
    Row(
        id="no GPU",
        source="none",
        gpus=(),
        library=False,
        chosen="none",
        works=False,
        says=(
            "No GPU in this container: PyTorch runs on the CPU; to use a GPU, start it with --g",
        ),
    ),
    Row(
        id="GPUs not handed over",
        driver="580.95.05",
        gpus=(),
        library=False,
        chosen="none",
        works=False,
        says=(
            "No GPU in this container, although the host has driver 580.95.05: PyTorch runs on the",
            "--gpus all, or --d",
        ),
    ),
    Row(
        id="no visible device",
        driver="570.124.06",
        gpus=(),
        chosen="none",
        works=False,
        says=("no GPU is visible; see NVIDIA_VISIBLE_DEVICES", "--device nvidia.com/gpu=all"),
    ),
    Row(
        id="driver libraries not mounted",
        driver="580.95.05",
        library=False,
        node=True,
        chosen="none",
        works=False,
        says=("NVIDIA_DRIVER_CAPABILITIES must have compute",),
    ),
    # Drivers older than CUDA 13.0's, on GPUs that compat is made for.
    compat("535 data centre", "535.230.02", says=("uses the compat library 580.95.05",)),
    compat("550 data centre", "550.163.01"),
    compat("565 data centre", "565.57.01"),
    compat(
        "570 data centre",
        "570.124.06",
        says=("driver 570.124.06 is older than CUDA 13.0's 580.65.06",),
    ),
    compat("575 data centre", "575.57.08"),
    compat("570, proprietary module", "570.86.15", source="proprietary"),
    compat("570, read below /sys", "570.86.15", source="sys"),
    compat("570, known to NVML only", "570.86.15", source="nvml"),
    compat("570 H100", "570.86.15", gpus=(NVIDIA,)),
    compat("570, eight of one kind", "570.86.15", gpus=(NVIDIA,) * 8),
    compat("570, brand that NVML does not know", "570.86.15", gpus=(UNKNOWN,)),
    # The same drivers where compat cannot be used.
    refused(
        "570 GeForce",
        "570.124.06",
        "GPU 0 (GeForce, error 804)",
        PAGE,
        gpus=(GEFORCE,),
    ),
    refused("550 GeForce", "550.120", "804", PAGE, gpus=(GEFORCE,)),
    refused("520 GeForce", "520.61.05", "branches 535", NEEDS_580, gpus=(GEFORCE,)),
    refused(
        "560, a branch that is not listed",
        "560.35.05",
        "for branches 535, 550, 565, 570, 575, 580, not 560 (error 803)",
        PAGE,
    ),
    refused("470, a branch that is not listed", "470.256.02", "not 470 (error 803)", NEEDS_580),
    refused(
        "570, data centre and GeForce",
        "570.124.06",
        "GPU 1 (GeForce, error 804)",
        "without it, see NVIDIA_VISIBLE_DEVICES, they run on the others",
        gpus=(TESLA, GEFORCE),
    ),
    refused(
        "570, image without compat",
        "570.124.06",
        "this image has no compat library",
        SISTER,
        compat=False,
    ),
    refused("570 GeForce, image without compat", "570.124.06", PAGE, gpus=(GEFORCE,), compat=False),
    refused("560, image without compat", "560.35.05", PAGE, compat=False),
    # Drivers that suffice.
    host("580.65.06", "580.65.06", says=("uses the host's driver 580.65.06: it runs CUDA 13.0",)),
    host("580.82.07", "580.82.07"),
    host("580.95.05, as old as compat", "580.95.05"),
    host("580.159.04, newer than compat", "580.159.04"),
    host("580.159.04 with device files", "580.159.04", node=True),
    host("590", "590.44.01"),
    host("595", "595.45.04"),
    host("580 GeForce", "580.95.05", gpus=(GEFORCE,)),
    host("580, image without compat", "580.95.05", compat=False),
    host("580, not root, read-only", "580.95.05", runs_as=USER_READ_ONLY),
    # CUDA 12.8: minor-version compatibility from 525 on.
    compat("12.8 on 535 data centre", "535.230.02", cuda="12.8"),
    compat("12.8 on 550 data centre", "550.163.01", cuda="12.8"),
    compat("12.8 on 470 data centre", "470.256.02", cuda="12.8"),
    host("12.8 on 570.26", "570.26", cuda="12.8"),
    host("12.8 on 580", "580.95.05", cuda="12.8"),
    host("12.8 on 590 GeForce", "590.44.01", cuda="12.8", gpus=(GEFORCE,)),
    host(
        "12.8 on 550 GeForce",
        "550.120",
        cuda="12.8",
        gpus=(GEFORCE,),
        says=("error 804", "by minor-version compatibility", "Numba and CuPy raw kernels fail"),
    ),
    host("12.8 on 555, not listed", "555.58.02", cuda="12.8", says=("not 555", "minor-version")),
    host("12.8 on 550 without compat", "550.120", cuda="12.8", compat=False, says=("minor",)),
    refused("12.8 on 515", "515.105.01", "driver 570.26 or newer would do", cuda="12.8"),
    # Who may write what.
    compat("570, not root", "570.86.15", runs_as=USER, how="environment"),
    compat("570, not root, read-only", "570.86.15", runs_as=USER_READ_ONLY, how="environment"),
    compat("570, root, read-only", "570.86.15", runs_as=READ_ONLY, how="environment"),
    compat(
        "570, host's libraries through LD_LIBRARY_PATH",
        "570.86.15",
        library=GOOGLES,
    ),
    host(
        "580, host's libraries through LD_LIBRARY_PATH",
        "580.95.05",
        library=GOOGLES,
        how="loader cache",
    ),
    # Google's device plugin mounts the libraries where no loader looks, and names the folder nowhere.
    host("580, GKE", "580.95.05", library=GOOGLES, listed=False, node=True, how="loader cache"),
    compat("570, GKE", "570.86.15", library=GOOGLES, listed=False, node=True),
    host(
        "580, GKE, not root",
        "580.95.05",
        library=GOOGLES,
        listed=False,
        node=True,
        runs_as=USER,
        how="environment",
    ),
    compat(
        "570, GKE, not root, read-only",
        "570.86.15",
        library=GOOGLES,
        listed=False,
        node=True,
        runs_as=USER_READ_ONLY,
        how="environment",
    ),
    # Apptainer with --nv: no root, and nothing but /tmp and the home can be written.
    compat(
        "570, Apptainer",
        "570.86.15",
        library=APPTAINER,
        node=True,
        runs_as=USER_READ_ONLY,
        how="environment",
        says=("driver 570.86.15 is older than CUDA 13.0's 580.65.06",),
    ),
    host("580, Apptainer", "580.95.05", library=APPTAINER, node=True, runs_as=USER_READ_ONLY),
    refused(
        "570 GeForce, Apptainer",
        "570.124.06",
        "GPU 0 (GeForce, error 804)",
        library=APPTAINER,
        node=True,
        runs_as=USER_READ_ONLY,
        gpus=(GEFORCE,),
    ),
    # Other systems.
    Row(
        id="WSL2",
        source="none",
        wsl=True,
        chosen="host",
        says=("WSL2 brings the driver of Windows",),
    ),
    Row(
        id="WSL2, compat asked for",
        source="none",
        wsl=True,
        mode="on",
        chosen="host",
        says=("WSL2",),
    ),
    host("driver that cannot be read", "", source="none", says=("cannot be read",)),
    # What the container toolkit has done before.
    host(
        "toolkit's compat on a driver that suffices",
        "580.159.04",
        toolkit=True,
        how="loader cache",
        says=("runs CUDA 13.0 natively",),
    ),
    compat("toolkit's compat and ours", "570.124.06", toolkit=True),
    Row(
        id="toolkit's compat, none of ours",
        driver="570.124.06",
        compat=False,
        toolkit=True,
        chosen="toolkit",
        says=("NVIDIA's container toolkit chose it",),
    ),
    refused(
        "toolkit's compat on 570 GeForce",
        "570.124.06",
        "error 804",
        NEEDS_580,
        toolkit=True,
        gpus=(GEFORCE,),
    ),
    host(
        "toolkit's compat, 12.8 on 550 GeForce",
        "550.120",
        cuda="12.8",
        toolkit=True,
        gpus=(GEFORCE,),
        how="loader cache",
        says=("error 804", "minor-version"),
    ),
    # What the trial finds.
    compat("no note, trial passes", "560.35.05", note=""),
    compat("unreadable note, trial passes", "560.35.05", note='{"driver": oops'),
    refused(
        "unreadable note, trial fails", "560.35.05", "803 at cuInit", note="", answer="803 0 0"
    ),
    refused("broken library", "570.124.06", "the library cannot be loaded", answer="broken"),
    refused(
        "first context fails",
        "570.124.06",
        "999 at cuDevicePrimaryCtxRetain, an unknown error of the driver",
        answer="0 999 0",
    ),
    refused(
        "fabric manager does not run", "570.124.06", "fabric manager must run", answer="802 0 0"
    ),
    compat(
        "GPU is full",
        "570.124.06",
        answer="0 0 2",
        says=("not proved, the GPU's memory is full",),
    ),
    compat(
        "trial hangs", "570.124.06", answer="hang", says=("not proved, the trial took too long",)
    ),
    compat("NVML hangs", "570.124.06", gpus="hang", answer="hang", says=("not proved",)),
    host(
        "12.8 on 550, NVML hangs",
        "550.163.01",
        cuda="12.8",
        gpus="hang",
        answer="hang",
        says=("no trial of the compat library ended in time", "minor-version"),
    ),
    host(
        "12.8 on 550, trial fails",
        "550.163.01",
        cuda="12.8",
        answer="804 0 0",
        says=("804 at cuInit", "minor-version"),
    ),
    # CUDA_COMPAT.
    refused("off on 570", "570.124.06", "CUDA_COMPAT=off", NEEDS_580, mode="off"),
    host("off on 580", "580.95.05", mode="off"),
    host("off, 12.8 on 550", "550.163.01", cuda="12.8", mode="off", says=("minor-version",)),
    host(
        "on, newer driver",
        "580.159.04",
        mode="on",
        answer="803 0 0",
        says=(
            "uses the host's driver 580.159.04: the compat library fails: 803 at cuInit, the kernel "
            "driver is newer than this libcuda",
        ),
    ),
    compat("on, older driver of the branch", "580.65.06", mode="on", says=("CUDA_COMPAT=on",)),
    compat("on, unlisted branch that works", "560.35.05", mode="on"),
    refused(
        "on, 570 GeForce",
        "570.124.06",
        "804 at cuInit, compat libraries are for data-centre and professional GPUs only",
        NEEDS_580,
        mode="on",
        answer="804 0 0",
        gpus=(GEFORCE,),
    ),
    host(
        "on, driver that cannot be read",
        "",
        source="none",
        mode="on",
        answer="803 0 0",
        says=("803 at cuInit", "cannot be read"),
    ),
    host("on, image without compat", "580.95.05", mode="on", compat=False, says=("no compat",)),
    host(
        "a mode that does not exist",
        "580.95.05",
        mode="maybe",
        says=("CUDA_COMPAT=maybe is not auto, on or off, and taken as auto",),
    ),
    # What an earlier start has left.
    host("moved to a newer host", "580.159.04", stale="cache"),
    host("moved, choice in the environment", "580.159.04", stale="environment"),
    host(
        "moved, not root",
        "580.159.04",
        stale="cache",
        runs_as=USER_READ_ONLY,
        how="environment",
    ),
    compat("started again", "570.124.06", stale="cache"),
    compat("started again, not root", "570.124.06", stale="cache", runs_as=USER),
)
