"""What `invoke gc` may take of a real engine: what was built here, and nothing made from it."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.integration.support import TESTS, invoke
from torch_images.build import built, labels
from torch_images.build.plan import CANDIDATE
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.maintain import gc

BUILT = "torch-test:latest"  # a name that its labels allow
# What users do with an image, and the name that they give the new one.
DERIVED = {
    "mine-test:gc-layer": f"FROM {BUILT}\nCOPY <<x /mine\nx\n",
    f"{TESTS}:gc-layer": f"FROM {BUILT}\nCOPY <<x /mine-too\nx\n",
    f"{TESTS}:gc-env": f"FROM {BUILT}\nENV MINE=1\n",
    f"{TESTS}:gc-label": f"FROM {BUILT}\nLABEL mine=1\n",
    f"{CANDIDATE}:gc-env": f"FROM {BUILT}\nENV MINE=2\n",
}
COMMIT = f"{TESTS}:gc-commit"


def build(recipe: str, name: str, runner: Runner) -> None:
    command = ["docker", "buildx", "build", "--provenance=false", "--tag", name, "-"]
    runner.run(command, stdin=recipe)


@pytest.fixture
def space(engine: Engine, runner: Runner, tmp_path: Path) -> Iterator[Workspace]:
    """A workspace whose cache notes one image, which users have derived others from."""
    label = f"LABEL {labels.ID}=test {labels.LOCK}=test"
    build(f"FROM scratch\n{label}\nCOPY <<x /x\nx", BUILT, runner)
    built.note(tmp_path, engine, engine.inspect(BUILT).id)
    for name, recipe in DERIVED.items():
        build(recipe, name, runner)
    created = runner.run(["docker", "create", BUILT, "true"]).output.strip()
    runner.run(["docker", "commit", created, COMMIT])
    runner.run(["docker", "rm", created])
    yield Workspace(root=tmp_path, cache=tmp_path, network=Network(), locks=tmp_path)
    for name in (BUILT, COMMIT, *DERIVED):
        engine.untag(name)


def test_ours_omits_derived_images(space: Workspace, engine: Engine) -> None:
    """It has all labels of ours. `gc --images` would remove it at once, however new."""
    derived = {name: engine.inspect(name).id for name in (COMMIT, *DERIVED)}
    digest = engine.inspect(BUILT).id
    assert all(engine.inspect(name).labels[labels.ID] == "test" for name in derived)
    ours = {image.id for image in built.ours(space.cache, engine)}
    assert ours & {digest, *derived.values()} == {digest}
    [item] = [i for i in gc.images(space.cache, engine) if i.image in {digest, *derived.values()}]
    left = gc.leftovers(space, engine, datetime.now(UTC))
    assert not [item for item in left if item.name.removeprefix("tag ") in derived]
    done = invoke("gc", "--images", "--dry-run", env={"TORCH_IMAGES_CACHE": str(space.cache)})
    assert done.returncode == 0, done.stderr
    assert f"would remove {BUILT}, " in done.stdout
    assert not [name for name in derived if name in done.stdout]
    assert list(gc.remove([item], engine)) == [item]
    assert engine.digest(BUILT) is None
    for name, known in derived.items():
        assert engine.digest(name) == known
        saved = subprocess.run(["docker", "save", name], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(saved)) as archive:  # ends where a blob is missing
            names = {Path(member.name).name for member in archive}
            blob = archive.extractfile(f"blobs/sha256/{known.removeprefix('sha256:')}")
            layers = json.loads(blob.read() if blob else b"")["layers"]
        assert {layer["digest"].removeprefix("sha256:") for layer in layers} <= names
    built.forget(space.cache, engine)
    assert digest not in {image.id for image in built.ours(space.cache, engine)}
