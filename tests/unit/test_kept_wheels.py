from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.fakes import plan_of
from torch_images.build import compiled
from torch_images.build.context_file import ContextFile
from torch_images.build.job import BuildOptions
from torch_images.build.plan import ImagePlan
from torch_images.config.types import Config

FOLDERS = ("build/", "devel/", "lock/", "source/")


@pytest.fixture
def image(config: Config, root: Path) -> ImagePlan:
    return plan_of(config, root, arch="12.0", source="fork")


def with_file(image: ImagePlan, path: str, data: bytes) -> ImagePlan:
    """The image with other bytes in a file of its context."""
    files = (replace(f, data=data) if f.path == path else f for f in image.context.files)
    return replace(image, context=replace(image.context, files=tuple(files)))


def test_wheels_are_those_of_what_their_steps_read(image: ImagePlan) -> None:
    """A line of start.py leaves them, and so does whatever else later steps add."""
    key = compiled.folder_of(image, Path())
    files = [file for file in image.context.files if file.path != "Dockerfile"]

    def decides(file: ContextFile) -> bool:
        changed = with_file(image, file.path, file.data + b"\n")
        return compiled.folder_of(changed, Path()) != key

    read = {file.path for file in files if decides(file)}
    assert read == {
        *(f.path for f in files if f.path.startswith(FOLDERS)),
        "wheels/source.txt",
    }
    stack = replace(image.context, beneath=(*image.context.beneath, "another layer"))
    assert compiled.folder_of(replace(image, context=stack), Path()) != key


@pytest.mark.parametrize(
    ("old", "new", "other"),
    [
        ("/run/build/install-packages /run/debs", "/bin/true", True),
        ("--network=none", "--network=host", True),
        ("/run/finish/install-files", "/bin/true", False),
        ("# What compiles", "# What else compiles", False),
    ],
)
def test_steps_before_the_wheels_count(image: ImagePlan, old: str, new: str, other: bool) -> None:
    text = image.context.dockerfile
    assert old in text
    changed = with_file(image, "Dockerfile", text.replace(old, new).encode())
    assert (compiled.folder_of(changed, Path()) != compiled.folder_of(image, Path())) is other


def test_other_options_compile_for_themselves(config: Config, root: Path, image: ImagePlan) -> None:
    cache = ("type=registry,ref=x",)
    assert compiled.keeps(image, BuildOptions(jobs=2))
    assert not compiled.keeps(plan_of(config, root), BuildOptions())
    for options in (
        BuildOptions(no_cache=True),
        BuildOptions(cache_from=cache),
        BuildOptions(cache_to=cache),
        BuildOptions(share="1/2"),
    ):
        assert not compiled.keeps(image, options)
    assert image.lock.sources
    mine = replace(image.lock, sources=replace(image.lock.sources, unlocked=True))
    assert not compiled.keeps(replace(image, lock=mine), BuildOptions())


def test_kept_wheels_lie_where_the_stages_have_them(image: ImagePlan, tmp_path: Path) -> None:
    assert compiled.contexts(image, tmp_path) == {}
    folder = compiled.folder_of(image, tmp_path)
    folder.mkdir(parents=True)
    wheels = {"torch": "torch-2.12.0a0+git1-cp313-cp313-linux_x86_64.whl"}
    wheels["triton"] = "triton-3.7.1+git1-cp313-cp313-linux_x86_64.whl"
    for name in wheels.values():
        (folder / name).touch()
    compiled.arrange(folder)
    contexts = compiled.contexts(image, tmp_path)
    assert contexts == {f"compile-{name}": str(folder) for name in wheels}
    for name, wheel in wheels.items():
        assert f"FROM toolchain AS compile-{name}\n" in image.context.dockerfile
        assert f"from=compile-{name},source=/wheels/{name}," in image.context.dockerfile
        assert [path.name for path in (folder / "wheels" / name).iterdir()] == [wheel]


def test_wheels_are_arranged_by_their_projects_names(tmp_path: Path) -> None:
    (tmp_path / "flash_attn-2.8.3.post2-cp313-cp313-linux_x86_64.whl").touch()
    compiled.arrange(tmp_path)
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["flash-attn"]
