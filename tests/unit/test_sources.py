from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers import closed_port, web_server
from torch_images.config.choose import choose
from torch_images.config.lock_requests import ToolkitRequest
from torch_images.config.types import Config
from torch_images.errors import LockError, NetworkError, TorchImagesError
from torch_images.fetch import checkout, toolchain
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.image_lock import image_lock, with_locked_trees
from torch_images.locks.sources import LockedArchive, LockedTree, SourceLock

DAY = dt.date(2026, 11, 21)


def test_a_compiled_image_carries_its_lock(config: Config, root: Path) -> None:
    for spec in (
        choose(config, source="fork", arch="12.0"),
        choose(config, source="fork", arch="12.0", cuda="12.8"),
    ):
        lock = image_lock(config, spec, root / "locks")
        assert not {"torch", "triton"} & lock.wheels.versions().keys()
        assert with_locked_trees(spec, lock) == spec
        assert lock.tools is not None
        assert "torch" not in lock.tools.versions()
        assert {"triton", "numpy", "cmake"} <= lock.tools.versions().keys()
        assert not {w.name for w in lock.tools.wheels} & {
            w.name for w in lock.wheels.wheels if w.name.startswith("nvidia-")
        }
        assert bool(lock.toolkit) == (spec.cuda.version == "12.8")
    assert lock.compiled["torch"] == "2.12.0a0+gita58677f.cu128"
    assert lock.compiled["triton"] == "3.7.1+git5d6048a"


def test_check_out_of_a_silent_repository_is_a_network_error(tmp_path: Path) -> None:
    tree = LockedTree(
        name="torch", version="1", repository="https://github.com/x/y", commit="a" * 40
    )
    network = Network(source_mirror=f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(NetworkError, match=r"could not be cloned: .*TORCH_IMAGES_SOURCE_MIRROR"):
        checkout.check_out(tree, cache=tmp_path, network=network, run=Runner())


def test_resolve_toolkit_reads_the_list_of_a_release(config: Config, tmp_path: Path) -> None:
    cuda = replace(config.cudas[0], release="12.8.9")
    root = "https://host/redist"
    file = {"relative_path": "a/b.tar.xz", "sha256": "c" * 64, "size": "12"}
    listed = {n: {"version": "12.8.9", "linux-x86_64": file} for n in cuda.archives}
    pages = {"/host/redist/redistrib_12.8.9.json": json.dumps(listed).encode()}
    with web_server(pages) as (url, _):
        network = Network(source_mirror=url)

        def resolve(**changes: object) -> SourceLock:
            changed = replace(cuda, **changes)  # type: ignore[arg-type]
            item = ToolkitRequest(name="toolkit-cu128", request=(), cuda=changed, archives=root)
            return toolchain.resolve_toolkit(item, network)

        toolkit = resolve()
        assert [a.name for a in toolkit.archives] == sorted(cuda.archives)
        assert toolkit.archives[0].url == f"{root}/a/b.tar.xz"
        with pytest.raises(
            LockError, match=r"does not list all archives for linux-x86_64: 'cuda_nvc'"
        ):
            resolve(archives=("cuda_nvc",))
        with pytest.raises(
            NetworkError, match=r"redistrib_12.8.10.json could not be read: status 404"
        ):
            resolve(release="12.8.10")
    gone = LockedArchive(name="x", version="1", url="https://host/x", size=1, sha256="d" * 64)
    lock = SourceLock(name="toolkit-x", date=DAY, request=(), archives=(gone,))
    with web_server({}) as (url, _), pytest.raises(TorchImagesError, match="x 1 is gone from"):
        toolchain.archive_folder(lock, cache=tmp_path, network=Network(source_mirror=url))
