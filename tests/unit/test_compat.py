"""NVIDIA's compat package from stand-in mirrors: web servers of this process."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.decisions import NOTES
from tests.packages import compat_deb, compat_lock, elf, make_deb
from tests.servers import closed_port, web_server
from torch_images.build.nvidia_require import require_cuda
from torch_images.config.types import Config
from torch_images.errors import LockError, NetworkError
from torch_images.fetch.compat import prepare
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.inside import decision
from torch_images.locks.debs import DebLock

DEB = compat_deb("13.0", "580.95.05", elf(NOTES["13.0"]))


def lock_of(data: bytes) -> DebLock:
    return compat_lock("13.0", "580.95.05", data, hashlib.sha256(data).hexdigest())


LOCK = lock_of(DEB)
FILES = {f"/{LOCK.debs[0].path}": DEB}


def test_prepare_fetches_once_and_reads_the_note(config: Config, tmp_path: Path) -> None:
    with web_server(FILES) as (url, paths):
        network = Network(compat_mirror=url)
        for _ in range(2):
            ready = prepare(config.compat, LOCK, cache=tmp_path, network=network, run=Runner())
            assert json.loads(ready.note)["driver"] == [535, 550, 565, 570, 575, 580]
            assert [p.read_bytes() for p in ready.folder.iterdir()] == [DEB]
        assert paths == list(FILES)


@pytest.mark.parametrize("compression", ["xz", "zst"])
def test_prepare_reads_the_note_with_any_compression(
    config: Config, tmp_path: Path, compression: str
) -> None:
    data = compat_deb("13.0", "580.95.05", elf(NOTES["13.0"]), compression)
    lock = lock_of(data)
    with web_server({f"/{lock.debs[0].path}": data}) as (url, _):
        network = Network(compat_mirror=url)
        ready = prepare(config.compat, lock, cache=tmp_path, network=network, run=Runner())
    assert json.loads(ready.note)["driver"][0] == 535


@pytest.mark.parametrize(
    ("reachable", "error", "problem"),
    [
        (
            True,
            LockError,
            "cuda-compat-13-0 580.95.05-1 cannot be fetched: locks/compat-cu130.json: no mirror",
        ),
        (False, NetworkError, "cuda-compat-13-0 580.95.05-1 cannot be fetched: "),
    ],
)
def test_prepare_failed_download_names_both_solutions(
    config: Config, tmp_path: Path, reachable: bool, error: type[Exception], problem: str
) -> None:
    with web_server({}) as (url, _):
        mirror = url if reachable else f"http://127.0.0.1:{closed_port()}"
        with pytest.raises(error) as caught:
            prepare(
                config.compat,
                LOCK,
                cache=tmp_path,
                network=Network(compat_mirror=mirror),
                run=Runner(),
            )
    line = str(caught.value)
    assert line.startswith(problem)
    assert line.endswith(
        "; name a mirror with TORCH_IMAGES_COMPAT_MIRROR, or build without --compat"
    )
    assert "\n" not in line


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"no package", "is not a Debian package"),
        (make_deb("cuda-compat-13-0", "1", {"usr/share/x": b""}), "has no libcuda"),
    ],
)
def test_prepare_refuses_a_package_without_libcuda(
    config: Config, tmp_path: Path, data: bytes, problem: str
) -> None:
    lock = lock_of(data)
    with web_server({f"/{lock.debs[0].path}": data}) as (url, _):
        network = Network(compat_mirror=url)
        with pytest.raises(LockError, match=problem):
            prepare(config.compat, lock, cache=tmp_path, network=network, run=Runner())
    assert not (tmp_path / "compat").exists() or not list((tmp_path / "compat").iterdir())


FOLDER = "usr/local/cuda-13.0/compat"


@pytest.mark.parametrize(
    "path",  # a driver's own, and symbols
    ["usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", f"{FOLDER}/libcuda.so.580.95.05.debug"],
)
def test_only_the_compat_librarys_own_note_counts(
    config: Config, tmp_path: Path, path: str
) -> None:
    """Another library in the package is made for other drivers."""
    files: dict[str, bytes | str] = {path: elf(NOTES["12.8"])}
    for more, note in (
        ({}, None),
        ({f"{FOLDER}/libcuda.so.580.95.05": elf(NOTES["13.0"])}, NOTES["13.0"]),
    ):
        data = make_deb("cuda-compat-13-0", "580.95.05-1", {**files, **more})
        lock = lock_of(data)
        cache = tmp_path / str(len(more))
        with web_server({f"/{lock.debs[0].path}": data}) as (url, _):
            network = Network(compat_mirror=url)
            if note is None:
                with pytest.raises(
                    LockError, match=r"has no libcuda; see locks/compat-cu130\.json"
                ):
                    prepare(config.compat, lock, cache=cache, network=network, run=Runner())
                continue
            ready = prepare(config.compat, lock, cache=cache, network=network, run=Runner())
        assert json.loads(ready.note)["driver"] == json.loads(note)["driver"]


# What nvidia-container-cli knows: https://github.com/NVIDIA/libnvidia-container, src/cli/dsl.c
OPERATORS = {">=": operator.ge, "<": operator.lt, "=": operator.eq}


def lets_in(required: str, *, driver: str, cuda: str, brand: str) -> bool:
    """Whether nvidia-container-cli starts a container on a host."""
    host: dict[str, Any] = {"driver": Version(driver), "cuda": Version(cuda), "brand": brand}

    def holds(condition: str) -> bool:
        match = re.fullmatch(r"(\w+)(>=|<|=)(.+)", condition)
        assert match
        name, sign, value = match.groups()
        return bool(OPERATORS[sign](host[name], value if name == "brand" else Version(value)))

    return any(all(map(holds, hosts.split(","))) for hosts in required.split())


@pytest.mark.parametrize("compat", [True, False])
@pytest.mark.parametrize(
    ("version", "driver", "runs", "let_in"),
    [
        ("13.0", "580.95.05", "13.0", True),
        ("13.0", "575.57.08", "12.9", True),
        ("13.0", "560.35.05", "12.6", True),  # a branch that no compat library is for
        ("13.0", "535.54.03", "12.2", True),
        ("13.0", "530.30.02", "12.1", False),
        ("12.8", "550.120", "12.4", True),
        ("12.8", "470.256.02", "11.4", True),
        ("12.8", "460.32.03", "11.2", False),
    ],
)
def test_only_hosts_on_which_no_image_of_the_cuda_version_works_are_refused(
    config: Config, version: str, driver: str, runs: str, let_in: bool, compat: bool
) -> None:
    """On the others the start explains itself: a GeForce is as welcome as an H100."""
    cuda = next(c for c in config.cudas if c.version == version)
    required = require_cuda(cuda, compat=compat)
    assert required.startswith(f"cuda>={version} ")  # the part that a refusal names
    for brand in ("geforcertx", "nvidia", "tesla"):
        assert lets_in(required, driver=driver, cuda=runs, brand=brand) is let_in


@pytest.mark.parametrize("note", NOTES.values())
def test_notes_of_compat_libraries_list_the_brands_that_pick_reckons_with(note: str) -> None:
    assert tuple(json.loads(note)["device"]) == decision.COMPAT_BRANDS
    assert decision.NVIDIA in decision.COMPAT_BRANDS
    assert decision.GEFORCE not in decision.COMPAT_BRANDS
