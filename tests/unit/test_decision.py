"""Which libcuda is chosen where the table of hosts has no row: boundaries, errors and remedies."""

from __future__ import annotations

from dataclasses import replace

import decision
import pytest
from decision import (
    COMPAT,
    HOST,
    TOOLKIT,
    Choice,
    Device,
    Host,
    Library,
    Note,
    Probe,
    Release,
    Sister,
)

PAGE = "https://example.org/pick.md"
SISTER = Sister("torch-cu130:sm90-compat", (535, 550, 570))
CUDA_13 = Release("13.0", "580.65.06", "580", PAGE, SISTER)
CUDA_12 = Release("12.8", "570.26", "525", PAGE)
NOTE = Note((535, 550, 570, 580), (1, 2))
OURS = Library("/ours", "580.95.05", NOTE)
THEIRS = Library("/theirs", "580.95.05", NOTE)
TESLA, GEFORCE = Device("H100", 2), Device("RTX 4090", 5)
MACHINE = Host("570.86.15", "/usr/lib/libcuda.so.1", nodes=True, devices=(TESLA,))


def trial(code: int | None, host: Host = MACHINE, image: Release = CUDA_13) -> Choice:
    """What becomes of the compat library after a trial that ended with a code."""
    made = decision.choose(host, image, OURS)
    assert made.tentative
    return decision.confirm(made, Probe(code, "cuInit"), host, image)


@pytest.mark.parametrize(
    ("code", "words"),
    [(2, "the GPU's memory is full"), (46, "the GPU is busy or in exclusive use")],
)
def test_a_gpu_that_is_occupied_says_nothing_against_the_library(code: int, words: str) -> None:
    made = trial(code)
    assert (made.library, made.works, made.tentative, made.code) == (COMPAT, True, False, 0)
    assert (
        made.reason == f"driver 570.86.15 is older than CUDA 13.0's 580.65.06; not proved, {words}"
    )


def test_a_trial_that_passes_changes_nothing() -> None:
    assert trial(0) == replace(decision.choose(MACHINE, CUDA_13, OURS), tentative=False)


@pytest.mark.parametrize(
    ("devices", "driver", "library"),
    [
        (
            (TESLA,),
            "570.86.15",
            COMPAT,
        ),  # CUDA 12.8 would run by minor versions, but GPUs are known
        (None, "570.86.15", HOST),
        (None, "520.61.05", COMPAT),  # nothing else could work
    ],
)
def test_a_trial_without_an_answer(
    devices: tuple[Device, ...] | None, driver: str, library: str
) -> None:
    host = replace(MACHINE, driver=driver, devices=devices)
    image = replace(CUDA_12, driver="575.51.03")
    compat = replace(OURS, note=None)
    made = decision.choose(host, image, compat)
    found = decision.confirm(made, Probe(None), host, image)
    assert (found.library, found.works, found.code, found.tentative) == (library, True, 0, False)


@pytest.mark.parametrize(("code", "error"), [(803, 803), (100, 100), (-1, -1)])
def test_a_failed_trial_leaves_the_hosts_library_and_the_error(code: int, error: int) -> None:
    made = trial(code)
    assert (made.library, made.works, made.code, made.folder) == (HOST, False, error, "")
    assert (made.driver, made.image, made.page) == ("580.65.06", "", PAGE)
    newer = replace(MACHINE, driver="580.159.04")
    asked = decision.choose(newer, CUDA_13, OURS, mode=decision.ON)
    plain = decision.confirm(asked, Probe(code, "cuInit"), newer, CUDA_13)
    assert (plain.library, plain.works, plain.code) == (HOST, True, error)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (Probe(803, "cuInit"), f"803 at cuInit, {decision.ERRORS[803]}"),
        (Probe(1, "cuInit"), "1 at cuInit, an error of the driver"),
        (Probe(5, "cuInit", "why"), "5 at cuInit, an error of the driver (why)"),
        (Probe(-1, "", "status 9"), "the library cannot be loaded (status 9)"),
        (Probe(None), "an error of the driver"),
    ],
)
def test_a_failed_trial_in_words(probe: Probe, words: str) -> None:
    assert decision.describe(probe) == words


def test_our_library_is_proved_before_the_toolkits_is_believed() -> None:
    """The toolkit chose by the host's driver alone; ours is tried. So ours goes first, where an
    image has one, and where ours cannot work neither is used: both are of the same CUDA version.
    """
    host = replace(MACHINE, toolkit=THEIRS)
    assert decision.choose(host, CUDA_13, None).library == TOOLKIT
    made = decision.choose(host, CUDA_13, OURS)
    assert (made.library, made.folder, made.tentative) == (COMPAT, "/ours", True)
    unfit = replace(OURS, note=Note((580,), (1, 2)))
    made = decision.choose(host, CUDA_13, unfit)
    assert (made.library, made.works) == (HOST, False)


def test_the_toolkits_library_is_used_only_where_it_can_work() -> None:
    for unfit in (
        replace(THEIRS, version="565.57.01"),
        replace(THEIRS, note=Note((580,), (1, 2))),
        replace(THEIRS, note=Note((570,), (1,))),
    ):
        made = decision.choose(replace(MACHINE, toolkit=unfit), CUDA_13, None)
        assert (made.library, made.works) == (HOST, False)


def test_a_compat_library_older_than_the_driver_is_not_tried() -> None:
    old = replace(OURS, version="565.57.01", note=None)
    made = decision.choose(MACHINE, CUDA_13, old)
    assert (made.library, made.works, made.code) == (HOST, False, 803)
    assert "the compat library 565.57.01 is older still (error 803)" in made.reason
    same = replace(old, version=MACHINE.driver)
    assert decision.choose(MACHINE, CUDA_13, same).library == COMPAT
    unknown = replace(old, version="")
    assert decision.choose(MACHINE, CUDA_13, unknown).library == COMPAT


def test_a_brand_that_is_not_listed() -> None:
    unknown, strange = Device("?", 0), Device("new", 99)
    host = replace(MACHINE, devices=(unknown,))
    assert decision.choose(host, CUDA_13, OURS).library == COMPAT
    alone = decision.choose(replace(MACHINE, devices=(strange,)), CUDA_13, OURS)
    assert alone.code == 804
    assert alone.reason == (
        "driver 570.86.15 is too old, and compat libraries do not run on new (brand 99, error 804)"
    )
    mixed = decision.choose(replace(MACHINE, devices=(unknown, GEFORCE, TESLA)), CUDA_13, OURS)
    assert (mixed.works, mixed.code) == (False, 804)
    assert mixed.reason.endswith(
        "RTX 4090 (GeForce, error 804); without it, see NVIDIA_VISIBLE_DEVICES, "
        "they run on the others"
    )


NEEDS = "; driver 580.65.06 or newer would do; "
NAMED = f"{NEEDS}so would torch-cu130:sm90-compat, with NVIDIA's compat library"
FOUND = f"{NEEDS}for an image that suits the driver, see {PAGE}"


@pytest.mark.parametrize(
    ("driver", "brand", "ends"),
    [
        ("570.86.15", 2, NAMED),
        ("535.230.02", 14, NAMED),
        ("550.163.01", 0, NAMED),  # a brand that NVML does not know
        ("560.35.05", 2, FOUND),  # a branch that the library is not for
        ("440.33.01", 2, FOUND),
        ("570.86.15", 5, FOUND),  # GeForce
        ("570.86.15", 6, FOUND),  # TITAN
    ],
)
def test_an_image_with_a_compat_library_is_named_where_it_would_work(
    driver: str, brand: int, ends: str
) -> None:
    host = replace(MACHINE, driver=driver, devices=(Device("GPU", brand),))
    made = decision.choose(host, CUDA_13, None)
    assert (made.works, made.code) == (False, decision.TOO_OLD)
    assert decision.sentence(made, host, CUDA_13, None) == (
        f"CUDA 13.0 cannot work: driver {driver} is too old, and this image has no compat library"
        f"{ends}"
    )


def test_no_image_is_named_that_does_not_exist_or_has_been_declined() -> None:
    """CUDA_COMPAT=off: its user does not want one."""
    for image, mode in ((replace(CUDA_13, sister=None), "auto"), (CUDA_13, "off")):
        made = decision.choose(MACHINE, image, None, mode)
        assert (made.image, made.page) == ("", PAGE)


def test_without_a_page_only_the_driver_is_named() -> None:
    """As in the answers of `./inv pick`, which list the images themselves."""
    image = Release("13.0", "580.65.06", "580")
    made = decision.choose(MACHINE, image, None)
    assert decision.sentence(made, MACHINE, image, None).endswith(NEEDS.rstrip("; "))


HOPPER, BLACKWELL = Device("H100", 14, "9.0", "520"), Device("RTX 5090", 5, "12.0", "570")


@pytest.mark.parametrize("mode", decision.MODES)
@pytest.mark.parametrize("compat", [OURS, None])
def test_no_library_lifts_a_driver_that_does_not_support_the_gpu(
    mode: str, compat: Library | None
) -> None:
    for driver, device, names, first in (
        ("550.54.14", BLACKWELL, "RTX 5090", "570"),
        ("470.82.01", HOPPER, "H100", "520"),
    ):
        host = replace(MACHINE, driver=driver, devices=(device, device))
        made = decision.choose(host, CUDA_12, compat, mode=mode)
        assert (made.library, made.works, made.code) == (HOST, False, decision.TOO_OLD)
        assert decision.sentence(made, host, CUDA_12, compat) == (
            f"CUDA 12.8 cannot work: driver {driver} does not support {names}, "
            f"and no compat library changes that; driver {first} or newer would do"
        )


@pytest.mark.parametrize(
    ("driver", "devices"),
    [
        ("570.26", (BLACKWELL,)),
        ("550.54.14", (HOPPER, BLACKWELL)),  # it is of use with the other one
        ("550.54.14", (Device("new", 14, "13.0"),)),  # nobody knows
        ("550.54.14", ()),
        ("550.54.14", None),
        ("", (BLACKWELL,)),
    ],
)
def test_a_driver_that_may_support_a_gpu(driver: str, devices: tuple[Device, ...] | None) -> None:
    made = decision.choose(replace(MACHINE, driver=driver, devices=devices), CUDA_12, OURS)
    assert "does not support RTX" not in made.reason
    assert made.works == (devices != ())


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (HOST, "the host's driver 570.86.15"),
        (COMPAT, "the compat library 580.95.05"),
        (TOOLKIT, "the compat library that NVIDIA's toolkit mounted"),
    ],
)
def test_what_is_used_in_words(library: str, words: str) -> None:
    made = Choice(library, works=True, reason="why")
    assert decision.sentence(made, MACHINE, CUDA_13, OURS) == f"CUDA 13.0 uses {words}: why"


def test_what_is_unknown_is_not_said() -> None:
    host, nameless = replace(MACHINE, driver=""), replace(OURS, version="")
    for library, compat, words in (
        (HOST, None, "the host's driver"),
        (COMPAT, None, "the compat library"),
        (COMPAT, nameless, "the compat library"),
    ):
        made = Choice(library, works=True, reason="why")
        assert decision.sentence(made, host, CUDA_13, compat) == f"CUDA 13.0 uses {words}: why"


CPU = "PyTorch runs on the CPU; to use a GPU, start it with"
BOTH_WAYS = "--gpus all, or --device nvidia.com/gpu=all where Docker uses CDI"


@pytest.mark.parametrize(
    ("host", "line"),
    [
        (Host(), f"No GPU in this container: {CPU} {BOTH_WAYS}"),
        (Host(apptainer=True), f"No GPU in this container: {CPU} --nv"),
        (
            Host(driver="570.86.15"),
            f"No GPU in this container, although the host has driver 570.86.15: {CPU} {BOTH_WAYS}",
        ),
        (
            Host(library="/l", devices=()),
            "CUDA 13.0 cannot work: no GPU is visible; see NVIDIA_VISIBLE_DEVICES, "
            "and --gpus or --device nvidia.com/gpu=all",
        ),
        *(
            (
                host,
                "CUDA 13.0 cannot work: the host's libcuda was not mounted; "
                "NVIDIA_DRIVER_CAPABILITIES must have compute",
            )
            for host in (
                Host(driver="570.86.15", nodes=True),
                Host(devices=(TESLA,)),
                Host(wsl=True),
            )
        ),
        (
            Host(driver="570.86.15", nodes=True, apptainer=True),
            "CUDA 13.0 cannot work: the host's libcuda was not mounted; start it with --nv",
        ),
    ],
)
@pytest.mark.parametrize("mode", decision.MODES)
def test_without_a_gpu_nothing_works(host: Host, line: str, mode: str) -> None:
    made = decision.choose(host, CUDA_13, OURS, mode=mode)
    assert (made.library, made.works, made.code, made.folder) == ("none", False, 100, "")
    assert decision.sentence(made, host, CUDA_13, OURS) == line


def test_on_without_a_compat_library_is_as_without_on() -> None:
    made = decision.choose(MACHINE, CUDA_13, None, decision.ON)
    plain = decision.choose(MACHINE, CUDA_13, None)
    assert made == plain  # which says that the image has none
    assert (made.image, made.works) == (SISTER.image, False)
    enough = replace(MACHINE, driver="580.65.06")
    made = decision.choose(enough, CUDA_13, None, mode=decision.ON)
    assert made.works
    assert made.reason.startswith("this image has no compat library; ")


def test_off_is_the_hosts_library_whatever_that_means() -> None:
    made = decision.choose(MACHINE, CUDA_13, OURS, decision.OFF)
    assert (made.library, made.works, made.code) == (HOST, False, decision.TOO_OLD)
    assert (made.driver, made.image, made.page) == ("580.65.06", "", PAGE)
    minor = decision.choose(MACHINE, replace(CUDA_12, driver="575.51.03"), OURS, mode=decision.OFF)
    assert (minor.library, minor.works, minor.code) == (HOST, True, 0)
    assert minor.reason == (
        "CUDA_COMPAT=off; it runs CUDA 12.8 by minor-version compatibility; Numba and CuPy "
        "raw kernels fail"
    )


@pytest.mark.parametrize(
    ("obstacle", "code"), [(None, 0), (replace(OURS, version="565.57.01"), 803)]
)
def test_minor_version_compatibility_keeps_the_error_of_the_compat_library(
    obstacle: Library | None, code: int
) -> None:
    """But for the one that says no more than that there is none."""
    made = decision.choose(MACHINE, replace(CUDA_12, driver="575.51.03"), obstacle)
    assert (made.library, made.works, made.code) == (HOST, True, code)


def test_the_first_driver_that_suffices() -> None:
    for driver, sufficient in (("580.65.06", True), ("580.65.05", False), ("580.65", False)):
        made = decision.choose(replace(MACHINE, driver=driver), CUDA_13, OURS)
        assert (made.library == HOST) is sufficient
    assert decision.number("580.65.06") == (580, 65, 6)
    assert decision.number("580.x") == decision.number("") == ()
