"""Builds that take layers from a registry by the record, from an honest one and from one that lies."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from tests.integration.standins import replace, small_project
from tests.integration.support import invoke, registry, second_engine
from tests.releases import T130
from tests.servers import web_server
from tests.standin_registry import LIES, StandIn, standin_registry
from torch_images.build.plan import plan_images
from torch_images.build.substitution import Known, known
from torch_images.config.parse import load_config
from torch_images.config.selection import find_image
from torch_images.config.types import Config
from torch_images.host.cache import Part
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.host.workspace import Workspace
from torch_images.layers.known import KnownParent
from torch_images.layers.parent import PARENT_IMAGES, parent_name
from torch_images.layers.substitutes import Substitutes
from torch_images.locks.facts import with_facts
from torch_images.locks.layers import RecordedLayer, read_record
from torch_images.oci.layout import Compressed, Layer, image, layout_layers
from torch_images.verify.identify import identify
from torch_images.verify.suites import Check, suite_hash
from torch_images.verify.verify import VerifyReport, claim_of, report_path, write_report

# Not the images that other modules build meanwhile: a candidate has one name in the engine.
ID = f"cu130-sm80-torch{T130}-trixie-runtime"
CANDIDATE = f"torch-images-candidate:{ID}"
BUILD = (
    "build",
    "--cuda",
    "13.0",
    "--arch",
    "8.0",
    "--progress",
    "plain",
    "--unverified",
    "--json",
)
OBSERVED = {"cuda": "13.0", "torch": f"{T130}+cu130", "triton": "3.6.0", "python": "3.11.2"}


@dataclass(frozen=True)
class Small:
    """A project that is quick to build, packed once; and what of it a registry may have.

    `asked` are the paths that its index was asked for; `blobs` by digest what its parent image is.
    """

    folder: Path
    cache: Path
    index: str
    asked: list[str]
    config: Config
    found: Known
    digest: str
    blobs: Mapping[str, bytes]

    @property
    def parent(self) -> KnownParent:
        [parent] = self.found.parents
        return parent

    @property
    def env(self) -> dict[str, str]:
        return {"UV_DEFAULT_INDEX": self.index, "TORCH_IMAGES_CACHE": str(self.cache)}

    def build(self, *words: str, **env: str) -> tuple[dict[str, Any], str]:
        """What a build says, and what it says on stderr."""
        done = invoke(*BUILD, *words, cwd=self.folder, env={**self.env, **env})
        assert done.returncode == 0, done.stderr[-3000:]
        [outcome] = json.loads(done.stdout)
        return outcome, done.stderr


def with_base_only(cache: Path, target: Path) -> Path:
    """A cache that has lost the layers of wheels."""
    shutil.copytree(cache, target, ignore=shutil.ignore_patterns(Part.LAYERS, Part.PARENTS))
    return target


@pytest.fixture(scope="module")
def small(locks: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    scratch = tmp_path_factory.mktemp("substitutes")
    folder, cache = scratch / "project", scratch / "cache"
    pages = small_project(folder, locks, scratch / "wheels")
    replace(folder, "torch_images/fetch/stalls.py", "PATIENCE = 30.0", "PATIENCE = 2.0")
    real = os.environ.get("UV_DEFAULT_INDEX", PYPI_SIMPLE_ENDPOINT).rstrip("/")
    with web_server(pages, real.removesuffix("/simple")) as (url, asked):
        env = {"UV_DEFAULT_INDEX": f"{url}/simple", "TORCH_IMAGES_CACHE": str(cache)}
        (folder / "locks" / "layers.txt").unlink(missing_ok=True)
        assert not invoke("lock", "--select", "base-bookworm", cwd=folder, env=env).returncode
        done = invoke(*BUILD, "--no-substitute", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        [outcome] = json.loads(done.stdout)
        assert outcome["layers"]["packed"] == 3
        recorded = invoke("lock", "--layers", cwd=folder, env=env)
        assert recorded.returncode == 0, recorded.stderr
        config = with_facts(load_config(folder / "images.yaml"), folder / "locks")
        [plan] = plan_images(config, [find_image(config, ID)], folder, folder / "locks")
        found = known(config, read_record(folder / "locks"), plan, folder)
        assert found, recorded.stdout
        files = [path / "blob" for path in (cache / Part.LAYERS).iterdir() if path.is_dir()]
        for base in (cache / Part.BASES).iterdir():
            files += layout_layers(base) if (base / "index.json").exists() else ()
        blobs = [path.read_bytes() for path in files] + list(found.parents[0].image.documents)
        held = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in blobs}
        yield Small(folder, cache, env["UV_DEFAULT_INDEX"], asked, config, found,
                    outcome["digest"], held)  # fmt: skip
    engine.untag(outcome["digest"])  # with the names that a push gave it
    engine.untag(parent_name(found.parents[0].image))


def test_a_cold_build_takes_everything_that_a_push_left(
    small: Small, engine: Engine, tmp_path: Path
) -> None:
    """By another engine, which has nothing: neither wheels nor the base are made, and all is equal."""
    place = Workspace(
        root=small.folder, cache=small.cache, network=Network(), locks=small.folder / "locks"
    )
    _, plan = identify(small.config, CANDIDATE, place, engine)
    info = engine.inspect(CANDIDATE)
    passed = Check(name="image/test_x/test_y", outcome="passed", seconds=0)
    suite = suite_hash(place.root, claim_of(small.config, plan, info))
    seen = {**OBSERVED, "arch 8.0": "native sm_80"}
    report = VerifyReport(
        digest=info.id, id=ID, suite=suite, checks=(passed,), observed=seen, seconds=0
    )
    write_report(report, place)
    short = small.parent.image.digest.removeprefix("sha256:")[:16]
    with registry(tmp_path / "registry") as host:
        name = f"{host}/me/torch-cu130:parent-{short}"
        words = ("push", CANDIDATE, "--registry", f"{host}/me")
        dry = invoke(*words, "--dry-run", cwd=small.folder, env=small.env)
        assert f"would push {name}" in dry.stderr, dry.stderr
        sent = invoke(*words, cwd=small.folder, env=small.env)
        assert sent.returncode == 0, sent.stderr
        assert f"pushed {name}" in sent.stderr
        again = invoke(*words, cwd=small.folder, env=small.env)
        assert again.returncode == 0
        assert "parent-" not in again.stderr
        assert engine.registry_digest(name) == small.parent.image.digest
        assert engine.tags(f"{host}/me/torch-cu130:parent-") == ()
        small.asked.clear()
        with second_engine(runs=True) as second:
            env = {"DOCKER_HOST": second, "TORCH_IMAGES_CACHE": str(tmp_path / "cache")}
            outcome, said = small.build("--substitute", f"{host}/me", **env)
            assert outcome["digest"] == small.digest
            assert outcome["layers"] == {
                "taken": 3, "here": 0, "packed": 0, "repository": f"{host}/me/torch-cu130"
            }  # fmt: skip
            assert "warning" not in said
            wheels = ("torch", "triton", "torch-images-probe")
            assert not [path for path in small.asked if any(f"/{w}" in path for w in wheels)]
            assert not (tmp_path / "cache" / Part.BASES).exists()
            assert not (tmp_path / "cache" / Part.LAYERS).exists()
            again_, _ = small.build("--substitute", "127.0.0.1:1/me", **env)
            assert again_["digest"] == small.digest
            assert again_["layers"]["here"] == 3
    report_path(place, info.id).unlink()


def test_without_a_parent_image_each_layer_is_fetched(
    small: Small, engine: Engine, tmp_path: Path
) -> None:
    """And kept: the next build asks nobody."""
    env = {"TORCH_IMAGES_CACHE": str(with_base_only(small.cache, tmp_path / "cache"))}
    blobs = {d: data for d, data in small.blobs.items() if d != small.parent.image.digest}
    engine.untag(parent_name(small.parent.image))
    small.asked.clear()
    with standin_registry(blobs, shown="anybody") as standin:
        outcome, said = small.build("--substitute", f"{standin.host}/me", **env)
        assert outcome["layers"]["taken"] == 3
        assert "warning" not in said
        assert not [path for path in small.asked if "torch" in path or "triton" in path]
        standin.asked.clear()
        engine.untag(parent_name(small.parent.image))
        again, _ = small.build("--substitute", f"{standin.host}/me", **env)
        assert not standin.asked
    assert outcome["digest"] == again["digest"] == small.digest


@pytest.mark.parametrize("lie", [*LIES, "no answer"])
def test_what_a_registry_does_wrong_costs_nothing_but_the_layer(
    lie: str, small: Small, engine: Engine, tmp_path: Path
) -> None:
    """One line, the layer is packed, and the image is the same. A stand-in for a registry lies."""
    env = {"TORCH_IMAGES_CACHE": str(with_base_only(small.cache, tmp_path / "cache"))}
    engine.untag(parent_name(small.parent.image))
    torch = next(x for x in small.parent.layers if x.title.startswith("PyTorch"))
    blobs = {d: data for d, data in small.blobs.items() if d != small.parent.image.digest}
    with ExitStack() as stack:
        host = "127.0.0.1:1"
        if lie in LIES:
            held = standin_registry(blobs, {torch.digest: lie})
            host = stack.enter_context(held).host
        outcome, said = small.build("--substitute", f"{host}/me", **env)
    assert outcome["digest"] == small.digest
    assert outcome["layers"]["packed"] >= 1
    assert sum(outcome["layers"][k] for k in ("taken", "here", "packed")) == 3
    lines = [line for line in said.splitlines() if line.startswith("warning:")]
    assert len(lines) == (0 if lie == "missing" else 1), said
    assert all("the rest is packed here" in line for line in lines)
    left = [p.name for p in (tmp_path / "cache" / Part.LAYERS).iterdir() if "making" in p.name]
    assert left == []


@dataclass(frozen=True)
class Random:
    """A parent image of two layers that no engine has."""

    parent: KnownParent
    blobs: Mapping[str, bytes]


@pytest.fixture
def random(engine: Engine) -> Iterator[Random]:
    packed = [(name, *_layer(name)) for name in ("one", "two")]
    made = image(None, [(name, layer) for name, layer, _ in packed])
    held = tuple(
        RecordedLayer(
            title=name, key=name, digest=layer.digest, diff_id=layer.diff_id, size=layer.size
        )
        for name, layer, _ in packed
    )
    documents = {f"sha256:{hashlib.sha256(d).hexdigest()}": d for d in made.documents}
    blobs = {layer.digest: data for _, layer, data in packed} | documents
    yield Random(KnownParent(context="parent", image=made, layers=held), blobs)
    engine.untag(parent_name(made))


def _layer(name: str) -> tuple[Layer, bytes]:
    blob, data = io.BytesIO(), os.urandom(3_000_000)
    sink = Compressed(blob)
    with tarfile.open(fileobj=sink, mode="w:") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return sink.finish(), blob.getvalue()


def from_(standin: StandIn) -> Substitutes:
    return Substitutes(f"{standin.host}/me/x", {}, Network(), patience=1.0)


def test_an_engine_pulls_a_parent_image(random: Random, engine: Engine) -> None:
    with standin_registry(random.blobs) as standin:
        assert from_(standin).pull([random.parent], engine)
        name = parent_name(random.parent.image)
        assert engine.digest(name) == random.parent.image.digest
        assert engine.inspect(name).layers == tuple(x.diff_id for x in random.parent.layers)
        assert engine.digest(f"{standin.host}/me/x@{random.parent.image.digest}") is None


@pytest.mark.parametrize("lie", LIES)
def test_an_engine_takes_nothing_from_a_registry_that_lies(
    lie: str, random: Random, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(engine.tags(PARENT_IMAGES))
    with standin_registry(random.blobs, {random.parent.layers[1].digest: lie}) as standin:
        assert not from_(standin).pull([random.parent], engine)
    assert set(engine.tags(PARENT_IMAGES)) <= before
    assert engine.digest(random.parent.image.digest) is None
    [message] = caplog.messages
    assert "the rest is packed here" in message


def test_a_manifest_that_is_another_one_is_not_taken(random: Random, engine: Engine) -> None:
    with standin_registry(random.blobs, {random.parent.image.digest: "other bytes"}) as standin:
        assert not from_(standin).pull([random.parent], engine)
    assert engine.digest(parent_name(random.parent.image)) is None
