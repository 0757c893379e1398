"""The start of a container: every row of the table, on a host laid out as files."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_runtime
import effect
import facts
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decisions import ROOT, TABLE, VERSIONS, Row
from tests.packages import elf
from torch_images.build.render import image_facts
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.inside import decision
from torch_images.inside.decision import Probe

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\nGCC"
)
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jan  9 20:50:00 UTC 2025\nGCC"
)


def place(root: Path, path: str, data: bytes | str = b"") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data.encode() if isinstance(data, str) else data)
    return target


def put_library(folder: Path, version: str, data: bytes) -> None:
    place(folder, f"libcuda.so.{version}", data)
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")


@pytest.fixture
def image_json(config: Config, tmp_path: Path) -> Callable[[str], Path]:
    def write(cuda: str) -> Path:
        spec = choose(config, cuda=cuda, platform="linux/amd64")
        written = image_facts(config, spec, [dataclasses.replace(spec, compat=True)])
        return place(tmp_path, "image.json", json.dumps(written))

    return write


def lay_out(row: Row, root: Path) -> None:
    """Make a host of a row."""
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    forms = {"open": OPEN, "proprietary": PROPRIETARY}
    if row.source in forms:
        place(root, "proc/driver/nvidia/version", forms[row.source].format(row.driver))
    if row.source == "sys":
        place(root, "sys/module/nvidia/version", f"{row.driver}\n")
    if row.library:
        put_library(root / row.folder[1:], row.driver or "999.0", b"")
    if isinstance(row.library, str):
        place(root, effect.LOADER_CACHE, b"libc.so.6\0/lib/libc.so.6\0")
    if row.node:
        place(root, "dev/nvidia0")
    if row.wsl:
        place(root, "dev/dxg")
    if row.compat:
        folder = root / f"opt/cuda-compat/{row.cuda}"
        put_library(folder, VERSIONS[row.cuda], elf(row.compat_note or None))
    if row.toolkit:
        folder = root / f"usr/local/cuda-{row.cuda}/compat"
        put_library(folder, VERSIONS[row.cuda], elf(row.compat_note))
        place(root, "etc/ld.so.conf.d/00-compat-1f2e.conf", f"/usr/local/cuda-{row.cuda}/compat\n")
    if row.stale == "cache":
        place(root, effect.CONF, f"{root}/opt/cuda-compat/{row.cuda}\n")


def answers(row: Row) -> Callable[..., Probe]:
    """What a trial of the compat library finds."""
    if row.answer in {"hang", "broken"}:
        return lambda *_: Probe(None if row.answer == "hang" else decision.BROKEN)
    codes = dict(
        zip(
            ("cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc"),
            map(int, row.answer.split()),
            strict=True,
        )
    )
    step, code = next(((s, c) for s, c in codes.items() if c), ("", 0))
    return lambda *_: Probe(code, step)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_table(
    row: Row,
    tmp_path: Path,
    image_json: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "root"
    lay_out(row, root)
    nvml = {
        "driver": row.driver,
        "devices": [(f"GPU {i}", brand) for i, brand in enumerate(row.gpus)],
    }
    monkeypatch.setattr(facts, "in_child", lambda *_: None if row.gpus == "hang" else nvml)
    monkeypatch.setattr(cuda_runtime, "probe", answers(row))
    image = cuda_runtime.read_image(root, image_json(row.cuda))
    monkeypatch.setattr(cuda_runtime, "read_image", lambda _: image)
    mode, complaint = cuda_runtime.read_mode({"CUDA_COMPAT": row.mode})
    start = cuda_runtime.decide(root, mode)
    output = f"{complaint}\n{start.line}"
    assert (start.choice.library, start.choice.works) == (row.chosen, row.works), output
    assert [part for part in row.says if part not in output] == [], output
    assert "\n" not in start.line

    if row.runs_as != ROOT:
        monkeypatch.setattr(effect, "_write", lambda *_: False)
        monkeypatch.setattr(effect, "_remove", lambda *_: False)
    stale = {"LD_LIBRARY_PATH": f"/mine:{root}/opt/cuda-compat/13.0", "TRITON_LIBCUDA_PATH": "/t"}
    environ = stale if row.stale == "environment" else {}
    by_name = isinstance(row.library, str) and row.listed
    if by_name:
        environ = {"LD_LIBRARY_PATH": f"{root}{row.folder}"}
    how, changes = effect.apply(
        start.choice, start.host, root, environ, f"{root}/opt/cuda-compat", ldconfig=lambda: True
    )
    assert how == (effect.CACHE if row.stale and start.choice.folder else row.how)
    own, hosts = str(root / f"opt/cuda-compat/{row.cuda}"), f"{root}{row.folder}"
    folders = [own] if row.chosen == "compat" else [hosts]
    folders += [hosts] if isinstance(row.library, str) and hosts not in folders else []
    conf = root / effect.CONF
    if how == effect.ENVIRONMENT:
        path = {"LD_LIBRARY_PATH": ":".join(folders), "TRITON_LIBCUDA_PATH": folders[0]}
        assert changes == path
    elif how == effect.CACHE:
        assert conf.read_text().split() == folders
        before = by_name and row.chosen == "compat"
        assert changes == ({"LD_LIBRARY_PATH": ":".join(folders)} if before else {})
    else:
        assert not conf.exists()
        triton = {"TRITON_LIBCUDA_PATH": hosts} if by_name else {}
        assert changes == ({"LD_LIBRARY_PATH": "/mine"} if row.stale == "environment" else triton)


@given(st.text(max_size=80))
def test_kernel_driver_of_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("root")
    place(root, "proc/driver/nvidia/version", text.encode("utf-8", "surrogatepass"))
    assert facts.kernel_driver(root) == "" or "NVRM version" in text


def test_in_child_gives_up_a_hanging_child() -> None:
    started = time.monotonic()
    assert facts.in_child(lambda: time.sleep(60) or {}, started + 0.05) is None  # type: ignore[func-returns-value]
    assert facts.in_child(lambda: {"driver": "1"}, time.monotonic() + 60) == {"driver": "1"}


def test_probe_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entrypoint becomes the command, and its os.wait() would return a child of ours."""
    fork, start = os.fork, subprocess.Popen
    children: list[int] = []
    pipes: list[Any] = []

    def forked() -> int:
        children.append(fork())
        return children[-1]

    def started(_: object, **options: Any) -> subprocess.Popen[str]:
        child: subprocess.Popen[str] = start(["sleep", "60"], **options)
        children.append(child.pid)
        pipes.append(child.stdout)
        return child

    monkeypatch.setattr(facts, "ENDS", 60.0)  # a busy machine ends them late
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", forked)
        assert facts.in_child(lambda: time.sleep(60) or {}, 0.0) is None  # type: ignore[func-returns-value]
    monkeypatch.setattr(subprocess, "Popen", started)
    assert cuda_runtime.probe("", 0.0) == Probe(None)
    for pipe in pipes:
        pipe.close()
    assert len(children) == 2
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
