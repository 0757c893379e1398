"""Which libcuda is chosen where tests/decisions.py has no row: boundaries, errors and remedies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.inside import decision
from torch_images.inside.decision import Device, Host, Library, Note, Probe, Release, Sister

PAGE = "https://example.org/pick.md"
SISTER = Sister("torch-cu130:sm90-compat", (535, 550, 570))
CUDA_13 = Release("13.0", "580.65.06", "580", PAGE, SISTER)
CUDA_12 = Release("12.8", "575.51.03", "525", PAGE)
NOTE = Note((535, 550, 570, 580), (1, 2, 14))
OURS = Library("/ours", "580.95.05", NOTE)
THEIRS = Library("/theirs", "580.95.05", NOTE)
TESLA, GEFORCE = Device("H100", 2), Device("RTX 4090", 5)
HOPPER, BLACKWELL = Device("H100", 14, "9.0", "520"), Device("RTX 5090", 5, "12.0", "570")
HOST = Host("570.86.15", "/usr/lib/libcuda.so.1", nodes=True, devices=(TESLA,))


def on(driver: str, *devices: Device, **more: object) -> Host:
    """A host with a driver and GPUs."""
    return replace(HOST, driver=driver, devices=devices or HOST.devices, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A host and an image; what is chosen, the CUDA error of the cause, and parts of the line."""

    host: Host = HOST
    image: Release = CUDA_13
    compat: Library | None = OURS
    mode: str = "auto"
    chosen: str
    works: bool = False
    code: int = 0
    says: str = ""


CASES = {
    "one before it": Case(host=on("580.65.05"), chosen="compat", works=True),
    "compat older than the driver": Case(
        compat=replace(OURS, version="565.57.01", note=None),
        chosen="host",
        code=803,
        says="565.57.01 is older still (error 803)",
    ),
    "compat of an unknown version": Case(
        compat=replace(OURS, version="", note=None), chosen="compat", works=True
    ),
    "compat older, minor version": Case(
        image=CUDA_12,
        compat=replace(OURS, version="565.57.01"),
        chosen="host",
        works=True,
        code=803,
        says="minor-version compatibility",
    ),
    "a brand that nobody knows": Case(
        host=on("570.86.15", Device("new", 99)), chosen="host", code=804, says="new (brand 99"
    ),
    "some GPUs cannot": Case(
        host=on("570.86.15", Device("?", 0), GEFORCE, TESLA),
        chosen="host",
        code=804,
        says="RTX 4090 (GeForce, error 804); without it, see NVIDIA_VISIBLE_DEVICES",
    ),
    "sister named": Case(
        compat=None, chosen="host", code=35, says="so would torch-cu130:sm90-compat"
    ),
    "sister for another branch": Case(
        host=on("560.35.05"), compat=None, chosen="host", code=35, says=f"see {PAGE}"
    ),
    "sister declined": Case(compat=OURS, mode="off", chosen="host", code=35, says=f"see {PAGE}"),
    "on, without a library": Case(
        compat=None, mode="on", chosen="host", code=35, says="this image has no compat library"
    ),
    "toolkit's library": Case(
        host=replace(HOST, toolkit=THEIRS), compat=None, chosen="toolkit", works=True
    ),
    "toolkit's library is too old": Case(
        host=replace(HOST, toolkit=replace(THEIRS, version="565.57.01")),
        compat=None,
        chosen="host",
        code=35,
    ),
    "toolkit's library, and ours unfit": Case(
        host=replace(HOST, toolkit=THEIRS),
        compat=replace(OURS, note=Note((580,), (2,))),
        chosen="host",
        code=803,
    ),
    "Apptainer without --nv": Case(
        host=Host(apptainer=True), chosen="none", code=100, says="start it with --nv"
    ),
    "WSL2 without libcuda": Case(
        host=Host(wsl=True), chosen="none", code=100, says="was not mounted"
    ),
    **{
        f"no library lifts driver {driver} ({mode})": Case(
            host=on(driver, device, device),
            image=CUDA_12,
            mode=mode,
            chosen="host",
            code=35,
            says=f"does not support {device.name}, and no compat library changes that; "
            f"driver {device.driver} or newer would do",
        )
        for mode in decision.MODES
        for driver, device in (("550.54.14", BLACKWELL), ("470.82.01", HOPPER))
    },
    "a GPU that nobody knows": Case(
        host=on("550.54.14", Device("new", 14, "13.0")), image=CUDA_12, chosen="compat", works=True
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_choice(case: Case) -> None:
    choice = decision.choose(case.host, case.image, case.compat, case.mode)
    line = decision.sentence(choice, case.host, case.image, case.compat)
    assert (choice.library, choice.works, choice.code) == (case.chosen, case.works, case.code), line
    assert choice.tentative == (choice.library == decision.COMPAT)
    assert case.says in line


@pytest.mark.parametrize(
    ("probe", "library", "code", "says"),
    [
        (Probe(0), "compat", 0, "is older than"),
        (Probe(2, "cuMemAlloc"), "compat", 0, "not proved, the GPU's memory is full"),
        (Probe(46, "cuInit"), "compat", 0, "not proved, the GPU is busy"),
        (Probe(None), "compat", 0, "took too long"),
        (Probe(803, "cuInit"), "host", 803, "803 at cuInit, the kernel driver is newer"),
        (Probe(5, "cuInit", "why"), "host", 5, "5 at cuInit, an error of the driver (why)"),
        (Probe(-1, "", "status 9"), "host", -1, "the library cannot be loaded (status 9)"),
    ],
)
def test_choice_after_a_trial(probe: Probe, library: str, code: int, says: str) -> None:
    choice = decision.confirm(decision.choose(HOST, CUDA_13, OURS), probe, HOST, CUDA_13)
    assert (choice.library, choice.works, choice.code) == (library, library == "compat", code)
    assert not choice.tentative
    assert says in choice.reason


VERSION = st.builds(
    lambda major, minor, patch: f"{major}.{minor:02}" + (f".{patch:02}" if patch else ""),
    st.integers(400, 700),
    st.integers(0, 230),
    st.integers(0, 20),
)
BRANDS = st.lists(st.sampled_from(sorted(decision.BRANDS)), min_size=1, max_size=4)


@given(VERSION, BRANDS, st.booleans(), st.sampled_from(decision.MODES))
def test_choose_is_safe_on_any_host(
    version: str, brands: list[int], has_compat: bool, mode: str
) -> None:
    """The host's library wherever it suffices, compat nowhere that it is known to fail."""
    compat = OURS if has_compat else None
    host = on(version, *(Device("GPU", brand) for brand in brands))
    choice = decision.choose(host, CUDA_13, compat, mode)
    assert choice.tentative == (choice.library == decision.COMPAT)
    if mode == decision.AUTO and choice.library == decision.COMPAT:
        assert decision.number(version) < (580, 65, 6)
        assert decision.number(version)[0] in NOTE.branches
        assert all(brand in (0, *NOTE.brands) for brand in brands)
    for code in (0, 803, 999, None):
        final = decision.confirm(choice, Probe(code, "cuInit"), host, CUDA_13)
        if choice.tentative:
            assert not final.tentative
            assert (final.library == decision.COMPAT) == (code in (0, None))
    if not choice.works:
        line = decision.sentence(choice, host, CUDA_13, compat)
        assert "driver 580.65.06 or newer would do" in line
        assert (SISTER.image in line) != (PAGE in line)
