"""`build --stale` and what the ledger keeps."""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fakes import FakeRunner
from torch_images.build.bake import BuildOptions
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import LockError
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.jobs import Builder
from torch_images.publish import ledger, stale

DAY = dt.date(2026, 11, 26)
MACHINE = Builder(cores=2, memory=25_000_000_000)


class Engine:
    """An engine on another machine, with no image."""

    def ours(self, *_: object) -> list[Any]:
        return []

    def local_root(self) -> None:
        return None


def proof(image: str) -> ledger.Proof:
    """A line with 230 checks, whose inputs are not those of today."""
    digits = hashlib.sha256(image.encode()).hexdigest()
    return ledger.Proof(
        image=image, inputs=digits, compat="", lock=digits, digest=f"sha256:{digits}",
        date="2026-11-24", checks="230", machine="2 processors, 25 GB",
    )  # fmt: skip


@pytest.mark.parametrize("kept", [True, False])
def test_what_cannot_be_built_takes_no_proof_away(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """`--compat required` without a lock once replaced a proof of 230 checks by none."""
    spec = choose(config, platform="linux/amd64")
    error = LockError("no compat library is locked")

    def make(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(stale, "make", make)
    if kept:
        ledger.write(tmp_path, {spec.id: proof(spec.id)})
    workspace = Workspace(root=tmp_path, cache=tmp_path, network=Network(), locks=root / "locks")
    [done] = stale.build_stale(
        config,
        [spec],
        workspace,
        BuildOptions(),
        engine=Engine(),  # type: ignore[arg-type]
        run=FakeRunner(),
        machine=MACHINE,
        today=DAY,
    )
    assert done.error is error
    line = ledger.read(tmp_path)[spec.id]
    if kept:
        assert line == proof(spec.id)
        assert done.line is None
    else:
        assert (line.missing, line.checks) == (error.message, "0")
