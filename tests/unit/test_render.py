from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.conftest import T130
from torch_images.build import labels
from torch_images.build.context_file import ContextFile
from torch_images.build.nvidia_require import require_cuda
from torch_images.build.plan import ImagePlan, LockedImage, plan_image, version
from torch_images.build.render import (
    CONSTRAINTS,
    Context,
    completed,
    environment,
    render,
    write_context,
)
from torch_images.build.templates import comment, quoted
from torch_images.config.choose import choose
from torch_images.config.image import ImageSpec
from torch_images.config.matrix import matrix
from torch_images.config.types import Config
from torch_images.errors import ConfigError
from torch_images.layers.plan import layer_plans, wheel_groups
from torch_images.locks.constraints import VARIABLES, constraints
from torch_images.locks.image_lock import ImageLock, image_lock


def lock_of(config: Config, root: Path, spec: ImageSpec) -> ImageLock:
    return image_lock(config, spec, root / "locks")


def dockerfile(config: Config, root: Path, **axes: str) -> str:
    spec = choose(config, **axes)
    return render(config, spec, lock_of(config, root, spec), root).dockerfile


def instructions(text: str) -> list[str]:
    """The Dockerfile as BuildKit sees it: comments gone, continued lines joined."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


def unquote(word: str) -> str:
    """What BuildKit makes of a double-quoted word: backslash escapes, no variable left to expand."""
    assert word[0] == word[-1] == '"'
    inner = re.sub(r"\\([\\\"$])", lambda m: {"\\": "\0", '"': "\1", "$": "\2"}[m[1]], word[1:-1])
    assert not set(inner) & set('\\"$')
    return inner.translate({0: "\\", 1: '"', 2: "$"})


def test_render_every_image(config: Config, root: Path) -> None:
    """With constraints for its pip and uv, and with an immutable tag of its own."""
    names = set()
    for spec in matrix(config):
        plan = planned(config, root, spec, lock_of(config, root, spec))
        text = plan.context.dockerfile
        assert text.startswith(f"# torch-images {spec.id}\n")
        assert "{{" not in text
        assert not [line for line in text.splitlines() if line != line.rstrip()]
        assert "\n\n\n" not in text
        files = {file.path: file.data for file in plan.context.files}
        assert files["finish/constraints.txt"].decode() == constraints(config, spec, plan.lock)
        assert {environment(spec, plan.lock)[name] for name in VARIABLES} == {CONSTRAINTS}
        tag = version(config, plan)
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", tag)
        names.add((spec.repository, tag))
    assert len(names) == len(matrix(config))


def test_layers_follow_the_rate_of_change(config: Config, root: Path) -> None:
    spec = choose(config)
    plans = layer_plans(config, spec, lock_of(config, root, spec))
    assert list(plans) == ["cuda", "torch", "triton", "python"]
    assert [p.title for p in plans["torch"] + plans["python"]] == [
        f"torch {T130}",
        "Python packages",
    ]
    assert {len(p.wheels) for p in plans["cuda"][:-1]} == {1}  # the large ones are for themselves
    assert plans["cuda"][-1].title == "CUDA libraries, the small ones"


def test_each_wheel_is_installed_once_with_its_hash(config: Config, root: Path) -> None:
    spec = choose(config)
    lock = lock_of(config, root, spec)
    layers = [plan for plans in layer_plans(config, spec, lock).values() for plan in plans]
    lines = [wheel.line for layer in layers for wheel in layer.wheels]
    assert sorted(lines) == sorted(wheel.line for wheel in lock.wheels.wheels)
    assert all(wheels for _, _, wheels in wheel_groups(lock))
    text = dockerfile(config, root)
    listed = re.findall(r"^# - (.+), (\d+) MB, sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    assert listed == [(p.title, f"{p.size / 1e6:.0f}", p.key) for p in layers]


def test_the_environment_arrives_unchanged(config: Config, root: Path) -> None:
    spec = choose(config, arch="12.0")
    steps = instructions(dockerfile(config, root, arch="12.0"))
    line = next(s for s in steps if s.startswith("ENV "))
    pairs = re.findall(r'(\S+?)=("(?:[^"\\]|\\.)*")', line.removeprefix("ENV"))
    assert {name: unquote(value) for name, value in pairs} == environment(
        spec, lock_of(config, root, spec)
    )
    assert not [step for step in steps if step.startswith("LABEL ")]  # labels.py has them all


def planned(config: Config, root: Path, spec: ImageSpec, lock: ImageLock) -> ImagePlan:
    return plan_image(config, LockedImage(spec=spec, lock=lock), root)


def test_no_layer_depends_on_the_environment_nor_on_the_version(config: Config, root: Path) -> None:
    """The version has the hash of the context itself."""
    spec = choose(config, arch="12.0")
    lock = lock_of(config, root, spec)
    context = render(config, spec, lock, root)
    whole = completed(context, "v1")
    hosts = require_cuda(spec.cuda, compat=lock.compat is not None)
    after = whole.dockerfile[whole.dockerfile.index(f'NVIDIA_REQUIRE_CUDA="{hosts}"') :]
    assert "RUN" not in after
    assert ContextFile(path="finish/version", data=b"v1\n") in whole.files
    assert "ARG" not in context.dockerfile  # the history of an image has its value, or has not


@pytest.mark.parametrize(
    ("word", "compat", "label", "name"),
    [
        ("without", False, "none", "runtime"),
        ("with", True, "580.178.04-1ubuntu1", "runtime-compat"),
    ],
)
def test_dockerfile_with_and_without_the_compat_library(
    config: Config, root: Path, word: str, compat: bool, label: str, name: str
) -> None:
    spec = choose(config, arch="12.0", compat=word)
    plan = planned(config, root, spec, lock_of(config, root, spec))
    assert ("from=compat" in plan.context.dockerfile) == compat
    assert labels.write(config, plan)["io.github.torch-images.compat"] == label
    assert version(config, plan) == f"{T130}-sm120-{name}-{plan.identity[:12]}"


def test_identity_changes_with_every_input_but_comments(config: Config, root: Path) -> None:
    """Instructions, scripts, locks and layers; not the words of a comment."""
    spec = choose(config, arch="12.0")
    context = render(config, spec, lock_of(config, root, spec), root)

    def changed(path: str, old: bytes, new: bytes) -> Context:
        files = {file.path: file for file in context.files}
        assert old in files[path].data
        data = files[path].data.replace(old, new, 1)
        files[path] = dataclasses.replace(files[path], data=data)
        return dataclasses.replace(context, files=tuple(files.values()))

    dockerfile = "Dockerfile"
    for words in (
        changed(dockerfile, b"# torch-images ", b"# another, of "),
        changed(dockerfile, b"\n#\n", b"\n# More.\n\n#\n"),
        changed(dockerfile, spec.description.encode(), b"New words"),
    ):
        assert words.digest == context.digest
    lock = next(f.path for f in context.files if f.path.startswith("lock/wheel"))
    more = ContextFile(path="build/more", data=b"")
    others = [
        changed(dockerfile, b"\nRUN ", b"\nRUN true && "),
        changed(dockerfile, b"\nENV ", b"\n# ENV "),
        changed("build/install-wheels", b"#!", b"# a comment\n#!"),
        changed(lock, b'"date": "2', b'"date": "3'),
        dataclasses.replace(context, files=(*context.files, more)),
        dataclasses.replace(
            context, files=(*context.files, dataclasses.replace(more, executable=True))
        ),
        dataclasses.replace(context, beneath=context.beneath[:-1]),
        dataclasses.replace(context, beneath=("0" * 64, *context.beneath[1:])),
        dataclasses.replace(context, labels=context.labels[:-1]),
        *(
            render(config, each, lock_of(config, root, each), root)
            for each in (choose(config), choose(config, arch="9.0"))
        ),
    ]
    assert len({context.digest, *(each.digest for each in others)}) == len(others) + 1


@given(st.text(st.characters(exclude_categories=["C"]), min_size=1))
def test_quoting_keeps_every_printable_text(text: str) -> None:
    try:
        assert unquote(quoted(text)) == text
        assert "\n" not in comment(text)
        assert not comment(text).endswith("\\")
    except ConfigError:
        assert not text.isprintable()


def test_write_context_writes_all_files_with_their_modes(
    config: Config, root: Path, tmp_path: Path
) -> None:
    spec = choose(config)
    context = render(config, spec, lock_of(config, root, spec), root)
    folder = tmp_path / "context"
    write_context(context, folder)
    written = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    assert set(written) == {file.path for file in context.files}
    assert written["build/install-wheels"].stat().st_mode & 0o777 == 0o755
    assert written["Dockerfile"].stat().st_mode & 0o777 == 0o644
