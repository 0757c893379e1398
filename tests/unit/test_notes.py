"""What changed between two datasheets, which are made as a push makes them, and hostile ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile import ends_well, json_texts
from torch_images.build import labels
from torch_images.build.plan import plan_images
from torch_images.config.matrix import choose
from torch_images.config.types import Config
from torch_images.errors import UsageError
from torch_images.host.engine import Engine
from torch_images.host.image_info import ImageInfo
from torch_images.publish.datasheet import describe
from torch_images.publish.notes import notes, read, sheet
from torch_images.verify.identify import VerifiedImage
from torch_images.verify.verify import VerifyReport

Make = Callable[..., dict[str, Any]]
LAYERS = ("base", "CUDA libraries", "torch", "describe")


class Sizes:
    """An engine, as far as a datasheet asks one."""

    def layer_sizes(self, image: str) -> list[int]:
        return [2_000_000_000] * len(LAYERS)


@pytest.fixture(scope="session")
def make(config: Config, root: Path) -> Make:
    """The datasheet of an image of images.yaml, by its axes; `own` layers are no other image's."""

    def make(*, own: int = 2, size: int = 400_000_000, **axes: str) -> dict[str, Any]:
        [plan] = plan_images(config, [choose(config, **axes)], root, root / "locks")
        spec = plan.spec
        seen = {"cuda": spec.cuda.version, "torch": f"{spec.torch}+{spec.cuda.short}"}
        seen |= {"triton": plan.lock.triton, "python": "3.11.2"}
        seen |= {
            f"arch {a.name}": f"native sm_{a.name.replace('.', '')}" for a in spec.architectures
        }
        info = ImageInfo(
            id=f"sha256:{plan.identity}",
            size=1,
            labels=labels.write(config, plan),
            config={},
            created="",
        )
        report = VerifyReport(
            digest=info.id, id=spec.id, suite="", checks=(), observed=seen, seconds=0
        )
        image = VerifiedImage(plan=plan, info=info, report=report)
        digests = [f"{n:064x}" for n in range(len(LAYERS) - own)]
        digests += [f"{plan.identity[:60]}{n:04x}" for n in range(own)]
        layers = [{"digest": f"sha256:{digest}", "size": size} for digest in digests]
        document = {"config": {"digest": "sha256:c"}, "layers": layers}
        history = [{"created_by": step} for step in LAYERS]
        found = describe(image, cast("Engine", Sizes()), document, history)
        return cast("dict[str, Any]", json.loads(json.dumps(found)))

    return make


def text(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def between(old: dict[str, Any], new: dict[str, Any]) -> str:
    return notes([sheet(text(old))], [sheet(text(new))])


def test_a_new_release_of_torch(make: Make) -> None:
    old = make(cuda="13.0", torch="2.13.0", arch="12.0")
    new = make(cuda="13.0", torch="2.14.1", arch="12.0")
    lines = between(old, new).splitlines()
    assert lines[0] == "## `cu130-sm120-torch2.14.1-bookworm-runtime`"
    assert "- PyTorch: `2.13.0+cu130` to `2.14.1+cu130`" in lines
    assert "- Triton: `3.7.1` to `3.8.0`" in lines
    [cuda] = [line for line in lines if line.startswith("- CUDA libraries: ")]
    cudnn = "`nvidia-cudnn-cu13` `9.20.0.48` to `9.24.0.43`"
    assert cudnn in cuda
    [python] = [line for line in lines if line.startswith("- Python packages: ")]
    assert "`torch` `2.13.0` to `2.14.1`" in python
    assert "nvidia-" not in python
    assert not any(line.startswith(("- Oldest", "- Debian", "- CUDA:", "- Arch")) for line in lines)
    assert lines[-1] == "- To pull anew: 800.0 MB of 1.60 GB; unpacked 8.00 GB"


def test_a_new_cuda_version_has_another_driver(make: Make) -> None:
    """Of identifiers that differ in more than torch, the older is no predecessor."""
    old, new = make(cuda="13.0", arch="9.0"), make(cuda="13.2", arch="9.0")
    assert between(old, new).startswith("## New\n")
    new["id"] = old["id"]
    lines = between(old, new).splitlines()
    assert "- CUDA: `13.0` to `13.2`" in lines
    assert "- Oldest driver that runs it natively: `580.65.06` to `595.45.04`" in lines
    assert any(
        line.startswith("- Compat library: `580.") and line.endswith(" to none") for line in lines
    )


def test_security_fixes_are_named(make: Make) -> None:
    new = make(arch="9.0")
    old = copy.deepcopy(new)
    apt, bash = new["packages"]["debian"]["apt"], new["packages"]["debian"]["bash"]
    assert "apt" in new["security"]
    assert "bash" not in new["security"]
    old["packages"]["debian"] |= {"apt": "2.6.1", "bash": "5.1~x", "gone": "1"}
    del old["packages"]["debian"]["libexpat1"]
    lines = between(old, new).splitlines()
    [debian] = [line for line in lines if line.startswith("- Debian packages: ")]
    assert f"`apt` `2.6.1` to `{apt}`, `bash` `5.1~x` to `{bash}`, new: `libexpat1` `" in debian
    assert debian.endswith("gone: `gone`")
    assert "- Of these with security fixes of Debian's: `apt`" in lines


def test_architectures_and_features(make: Make) -> None:
    new = make(arch="9.0,12.0")
    old = copy.deepcopy(new)
    old["arches"] = {"8.0": "native sm_80", "9.0": "ptx compute_80"}
    old["features"] = [*(f for f in new["features"] if f != "nccl"), "magic"]
    lines = between(old, new).splitlines()
    arches = "`9.0` `ptx compute_80` to `native sm_90`, new: `12.0` `native sm_120`, gone: `8.0`"
    assert f"- Architectures: {arches}" in lines
    assert "- Features of PyTorch: new: `nccl`, gone: `magic`" in lines


def test_nothing_changed_but_the_digest(make: Make) -> None:
    new = make(arch="9.0")
    assert between(new, new).splitlines()[2:] == [
        "- The same versions of everything.",
        "- To pull anew: 0.0 MB of 1.60 GB; unpacked 8.00 GB",
    ]
    assert notes([], []) == "No image is new.\n"


def test_images_with_the_same_changes_share_a_section(make: Make) -> None:
    """And each is compared with the newest earlier release, never with a later one."""
    arches = ("9.0", "12.0")
    old = [make(torch=t, arch=a, own=1) for t in ("2.11.0", "2.12.1", "2.14.1") for a in arches]
    new = [make(torch="2.13.0", arch=a, own=n + 1) for n, a in enumerate(arches)]
    new.append(make(torch="2.13.0", variant="devel", arch="9.0"))
    found = notes([sheet(text(s)) for s in old], [sheet(text(s)) for s in new])
    names = [f"cu130-sm{n}-torch2.13.0-bookworm-runtime" for n in (90, 120)]
    assert f"## `{names[0]}`, `{names[1]}`\n" in found
    assert "- PyTorch: `2.12.1+cu130` to `2.13.0+cu130`" in found
    assert "- To pull anew: 400.0 MB to 800.0 MB of 1.60 GB" in found
    devel = "cu130-sm90-torch2.13.0-bookworm-devel"
    assert found.endswith(f"## New\n\n- `{devel}`: 1.60 GB to pull\n")


def test_a_folder_has_those_of_a_release(make: Make, tmp_path: Path) -> None:
    for number, arch in enumerate(("9.0", "12.0")):
        (tmp_path / f"{number}.json").write_bytes(text(make(arch=arch)))
    (tmp_path / "0.md").write_text("# not this")
    ids = [found.id for found in read(tmp_path)]
    assert ids == sorted(ids)
    assert len(ids) == 2
    assert [found.id for found in read(tmp_path / "0.json")] == [make(arch="9.0")["id"]]
    with pytest.raises(UsageError, match=r"gone does not exist; give a datasheet's JSON"):
        read(tmp_path / "gone")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), 1, "its schema is not 3; make it again"),
        (("id",), "x](http://evil) [", "is no name and no version"),
        (("id",), "a`b", "is no name and no version"),
        (("versions", "torch"), "latest", "its versions are not those of torch, cuda"),
        (("versions", "extra"), "1", "its versions are not those of torch, cuda"),
        (("versions", "cuda"), "13\n## Owned", "is no name and no version"),
        (("packages", "cuda"), {"a": 1}, "'a' is not text"),
        (("packages", "python"), {"<script>": "1"}, "'<script>' is no name and no version"),
        (("packages", "debian"), {str(n): "1" for n in range(5001)}, "more than 5000 entries"),
        (("layers", 0, "size"), -1, "a size is none that an image can have"),
        (("layers", 0, "digest"), "sha256:x", "sha256:x is not a digest"),
        (("size", "unpacked"), 10**14, "a size is none that an image can have"),
        (("compat",), "\x1b[31m", "is no name and no version"),
        (("security",), ["-rf"], "is no name and no version"),
        (("features",), "nccl", "'features' is not a list"),
    ],
)
def test_what_no_datasheet_says(
    make: Make, tmp_path: Path, path: tuple[Any, ...], value: Any, said: str
) -> None:
    document: Any = make(arch="9.0")
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    file = tmp_path / "sheet.json"
    file.write_bytes(text(document))
    with pytest.raises(UsageError) as caught:
        read(file)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{file} is no datasheet: ")
    assert str(caught.value).isprintable()


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(10**10)
    with pytest.raises(UsageError, match="it is too large"):
        read(tmp_path / "large.json")


@given(data=st.data())
def test_any_document_is_a_datasheet_or_one_line(
    make: Make, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = make(arch="9.0")
    file = tmp_path_factory.getbasetemp() / "sheet.json"
    file.write_text(data.draw(json_texts(good)), "utf-8", "surrogatepass")
    if found := ends_well(lambda: read(file)):
        said = notes([sheet(text(good))], found)
        assert all(line.isprintable() for line in said.splitlines())
