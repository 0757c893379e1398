from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.decisions import NOTES
from tests.unit.conftest import CONFIG, ROOT, T130
from tests.unit.fakes import FakeEngine, FakeRunner, plan_of, workspace_of
from torch_images.build import build as build_images
from torch_images.build import built, labels
from torch_images.build.bake import (
    Parts,
    bake_command,
    bake_file,
    environment,
    host_network,
    needs_no_secrets,
    without_secrets,
)
from torch_images.build.build import BuildResult, baked, revision, write_bake
from torch_images.build.input_labels import OURS
from torch_images.build.job import BuildOptions, Job
from torch_images.build.plan import (
    ImagePlan,
    LockedImage,
    plan_image,
    plan_images,
    version,
)
from torch_images.build.render import render
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import (
    BuildError,
    ConfigError,
    DiskError,
    EngineError,
    LockError,
    NetworkError,
    TorchImagesError,
    UnfinishedError,
    UsageError,
)
from torch_images.fetch.bootstrap import ReadyBase
from torch_images.host.buildx import is_remote
from torch_images.host.diagnose import explain
from torch_images.host.image_info import ImageInfo, ListedImage
from torch_images.host.network import Network
from torch_images.host.runner import Completed, Runner
from torch_images.host.workspace import Workspace
from torch_images.oci.compression import Compression


@pytest.fixture
def planned(config: Config, root: Path) -> tuple[ImagePlan, ...]:
    specs = [choose(config, cuda=v, arch="12.0") for v in ("12.8", "13.0")]
    return plan_images(config, specs, root, root / "locks")


def job_of(network: Network, options: BuildOptions | None = None) -> Job:
    space = Workspace(root=ROOT, cache=Path("/c"), network=network, locks=ROOT / "locks")
    return Job(
        config=CONFIG,
        workspace=space,
        engine=cast("Any", None),
        run=Runner(),
        options=options or BuildOptions(),
    )


def bake(
    planned: tuple[ImagePlan, ...],
    folder: Path,
    network: Network,
    namespace: str = "",
    options: BuildOptions | None = None,
) -> dict[str, Any]:
    digest = "sha256:" + "a" * 64
    base = ReadyBase(layout=Path("/b"), digest=digest)
    parts = {
        p.target: Parts(base=base, contexts={"compat": "/compat"}, compat_note=NOTES["13.0"])
        if p.spec.cuda.version == "13.0"
        else Parts(base=base)
        for p in planned
    }
    return bake_file(
        job_of(network, options),
        planned,
        parts,
        folder=folder,
        tools={"tools-build": "/t", "tools-sbom": "/s"},
        namespace=namespace,
    )


def test_bake_file_has_a_target_per_image(planned: tuple[ImagePlan, ...], root: Path) -> None:
    document = bake(planned, root, Network())
    assert list(document["target"]) == document["group"]["default"]["targets"]
    target = document["target"][planned[1].target]
    assert target["labels"] == {
        **labels.write(CONFIG, planned[1]),
        "io.github.torch-images.compat.note": NOTES["13.0"],
        "org.opencontainers.image.base.digest": "sha256:" + "a" * 64,
    }
    assert target["args"] == {"SOURCE_DATE_EPOCH": str(planned[1].lock.epoch)}
    assert target["contexts"]["compat"] == "/compat"
    without = document["target"][planned[0].target]
    assert "compat" not in without["contexts"]
    assert without["labels"]["io.github.torch-images.compat.note"] == "none"
    assert "variable" not in document
    assert target["output"] == [
        f"type=image,name=torch-images-candidate:cu130-sm120-torch{T130}-trixie-runtime,unpack=true,"
        "oci-mediatypes=true,compression=zstd,force-compression=true"
    ]
    packed = tuple(replace(image, small=True) for image in planned)
    small = bake(packed, root, Network())
    small_labels = small["target"][planned[1].target].pop("labels")
    extra = {
        "io.github.torch-images.compression": "small",
        "org.opencontainers.image.version": version(CONFIG, packed[1]),
    }
    assert small_labels == target.pop("labels") | extra
    assert small["target"][planned[1].target] == target


def test_bake_file_contains_no_secret(planned: tuple[ImagePlan, ...], root: Path) -> None:
    network = Network(
        ca_bundle=Path("/etc/ca.pem"),
        proxies=(("HTTPS_PROXY", "http://user:hunter2@proxy:1"),),
        index="https://user:hunter2@index/simple",
    )
    document = bake(planned, root, network)
    assert "hunter2" not in str(document)
    [target, _] = document["target"].values()
    assert target["args"]["HTTPS_PROXY"] == "${HTTPS_PROXY}"
    assert target["secret"] == [
        "type=env,id=index,env=TORCH_IMAGES_INDEX",
        "type=file,id=ca,src=/etc/ca.pem",
    ]
    assert target["contexts"]["certificates"] == str(root / "certificates")


@pytest.mark.parametrize("index", [None, "https://user:hunter2@index/simple"])
@pytest.mark.parametrize("bundle", [None, Path("/etc/ca.pem")])
def test_without_secrets_keeps_a_users_index(
    config: Config, root: Path, bundle: Path | None, index: str | None
) -> None:
    """A step with a secret took BuildKit 5 to 11 s more. Nothing else of the Dockerfile changes."""
    dockerfile = plan_of(config, root, variant="pod").context.dockerfile
    network = Network(ca_bundle=bundle, index=index)
    old, new = dockerfile.splitlines(), without_secrets(dockerfile, network).splitlines()
    mount = "    --mount=type="
    expected = {line for line in old if "type=secret" not in line}
    expected |= {f"{mount}secret,id=index \\"} if index else set()
    ca = f"{mount}bind,from=certificates,source=ca.pem,target=/run/secrets/ca \\"
    assert set(new) == expected | ({ca} if bundle else set())
    steps = old.count(f"{mount}secret,id=ca \\")
    assert steps
    assert len(old) - len(new) == steps * ((not index) + (not bundle))


def test_a_bundle_that_cannot_be_read_is_named(
    planned: tuple[ImagePlan, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.pem"
    space = replace(workspace_of(tmp_path, tmp_path), network=Network(ca_bundle=bundle))
    job = Job(config=CONFIG, workspace=space, engine=FakeEngine(), run=FakeRunner())

    def refuse(path: Path) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=rf"^{bundle} cannot be read; let this user read it"):
        write_bake(job, planned, {}, folder=tmp_path / "bake")


def test_every_secret_of_the_templates_is_known(root: Path) -> None:
    """`without_secrets` looks for whole lines."""
    templates = [path for path in (root / "docker").glob("*.j2") if path.name != "Standalone.j2"]
    lines = {line for path in templates for line in path.read_text().splitlines()}
    mount = "    --mount=type=secret,id="
    assert {line for line in lines if "type=secret" in line} == {
        f"{mount}{name} \\" for name in ("ca", "index", "compile")
    }


def test_secrets_stay_where_certificates_would_cost_a_cache(config: Config, root: Path) -> None:
    """Of compiling, or of another machine: a mounted file is part of a step's key."""
    pod, compiled = (
        plan_of(config, root, variant="pod"),
        plan_of(config, root, arch="12.0", source="fork"),
    )
    part = Parts(base=ReadyBase(layout=Path("/b"), digest="sha256:" + "a" * 64))
    kept = replace(part, compiled={"compile-torch": "/wheels"})
    assert needs_no_secrets(pod, part, BuildOptions())
    assert not needs_no_secrets(pod, part, BuildOptions(cache_from=("type=registry,ref=x",)))
    assert not needs_no_secrets(pod, part, BuildOptions(cache_to=("type=registry,ref=x",)))
    assert not needs_no_secrets(compiled, part, BuildOptions())
    assert needs_no_secrets(compiled, kept, BuildOptions())


def test_host_network_for_an_index_on_loopback(planned: tuple[ImagePlan, ...], root: Path) -> None:
    assert Network(index="http://127.0.0.1:3141/simple").on_loopback
    services = host_network(planned)["services"]
    assert list(services) == list(bake(planned, root, Network())["target"])
    assert {service["build"]["network"] for service in services.values()} == {"host"}


def test_bake_command_follows_the_options() -> None:
    options = BuildOptions(builder="remote", no_cache=True)
    command = bake_command((Path("b.json"),), options)
    assert {"--builder=remote", "--no-cache", "--provenance=false"} < set(command)
    assert "--no-cache" not in bake_command((Path("b.json"),), BuildOptions())


# The texts of buildx 0.13.1, BuildKit 0.13 and uv 0.13.
FAILURES = [
    ("write /x: no space left on device", DiskError, "the disk filled up"),
    (
        "#9 1.2   x Failed to download `a==1`\n#9 1.2   `-> Hash mismatch for `a==1`\n#9 1.2 \n"
        f"#9 1.2       Expected:\n#9 1.2         sha256:{'1' * 64}\n#9 1.2 \n"
        f"#9 1.2       Computed:\n#9 1.2         sha256:{'2' * 64}\n",
        LockError,
        f"a==1 is not the locked wheel: expected sha256:{'1' * 64}, found sha256:{'2' * 64}",
    ),
    (
        "#9 error: Failed to fetch: `http://x/simple/a/`\n#9   Caused by: client error (Connect)",
        NetworkError,
        "could not be reached",
    ),
    ("unknown flag: --provenance", EngineError, "buildx is too old"),
    ('ERROR: failed to solve: process "/run/x" did not complete', BuildError, "did not complete"),
    (
        "#3 1.1 Failed to fetch x\n#3 4.9 build-wheel: torch: out of memory with one job\n#3 ERROR\n",
        *(BuildError, "torch: out of memory with one job; compiled files are kept"),
    ),
    (
        "#3 1.0 as: No space left on device\n#3 2.0 build-wheel: the disk is full: torch: 1 of 2\n",
        *(DiskError, "the disk is full: torch: 1 of 2; compiled files are kept in the build cache"),
    ),
    (
        "#9 1.0 Could not connect\n#9 9.0 build-wheel: unfinished: torch: 1 of 2 units compiled\n",
        *(UnfinishedError, "torch: 1 of 2 units compiled; run the same command again to continue"),
    ),
    ("", BuildError, "the build failed"),
]


@pytest.mark.parametrize(("output", "kind", "text"), FAILURES)
def test_explain_a_failed_build(output: str, kind: type[TorchImagesError], text: str) -> None:
    error = explain(output)
    assert type(error) is kind
    assert text in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("described", "remote"),
    [
        ("Name: b\nDriver: docker-container\nEndpoint:  unix:///run/docker.sock\n", True),
        ("Name: far\nDriver:  docker\n\nNodes:\nEndpoint: far\n", True),
        ("Name: default\nDriver:  docker\n\nNodes:\nEndpoint: here\n", False),
    ],
)
def test_is_remote_by_driver_and_endpoint(described: str, remote: bool) -> None:
    answers = {"docker buildx inspect": (0, described), "docker context show": (0, "here\n")}
    assert is_remote("b", FakeRunner(answers)) == remote


def test_is_remote_of_an_unknown_or_silent_builder() -> None:
    with pytest.raises(EngineError, match="no builder 'b'; see `docker buildx ls`"):
        is_remote("b", FakeRunner({"docker buildx inspect": (1, "")}))
    gone = "Name: b\nDriver: \nError:  Cannot connect\n"
    with pytest.raises(EngineError, match="builder 'b' does not answer: Cannot connect"):
        is_remote("b", FakeRunner({"docker buildx inspect": (0, gone)}))


def printed(document: dict[str, Any], folder: Path, **environ: str | None) -> dict[str, Any]:
    """The targets that bake itself reads from a definition; it needs no engine for that."""
    file = folder / "docker-bake.json"
    file.write_text(json.dumps(document))
    command = ["docker", "buildx", "bake", f"--file={file}", "--print"]
    env = {**environ, "DOCKER_HOST": "unix:///none", "DOCKER_CONTEXT": None}
    targets: dict[str, Any] = json.loads(Runner().run(command, env=env).output)["target"]
    return targets


needs_buildx = pytest.mark.skipif(
    not shutil.which("docker")
    or bool(Runner().run(["docker", "buildx", "version"], check=False).code),
    reason="docker buildx is not installed",
)


def test_bake_file_fills_the_image_into_cache_names(
    planned: tuple[ImagePlan, ...], root: Path
) -> None:
    options = BuildOptions(cache_from=("type=registry,ref=h/c:{id}",), cache_to=("type=gha",))
    for target in bake(planned, root, Network(), options=options)["target"].values():
        identifier = target["context"].rpartition("/")[2]
        assert target["cache-from"] == [f"type=registry,ref=h/c:{identifier}"]
        assert target["cache-to"] == ["type=gha"]


@needs_buildx
def test_bake_expands_nothing_in_proxies(planned: tuple[ImagePlan, ...], tmp_path: Path) -> None:
    document = bake(planned, tmp_path, Network(proxies=(("HTTP_PROXY", "http://p:1"),)))
    for target in printed(document, tmp_path, HTTP_PROXY="http://u:${X}@p:1").values():
        assert target["args"]["HTTP_PROXY"] == "http://u:${X}@p:1"


def test_revision_counts_what_enters_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty lines of the ledger said "-dirty" for a link beside the clone's files.

    Those of one run of `build --stale` have one revision, though each changes the ledger.
    """
    workspace = workspace_of(tmp_path, tmp_path / "cache")
    assert revision(workspace, Runner()) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    others = [tmp_path / name for name in ("docs/ledger.csv", "scripts/bench/a.py", "README.md")]
    sources = [tmp_path / "images.yaml", tmp_path / "scripts/image/runtime/start.py"]
    for file in (*others, *sources):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "x")):
        Runner().run([*git, *words])
    for file in others:
        file.write_text("b")
    (tmp_path / ".venv").symlink_to(tmp_path)
    clean = revision(workspace, Runner())
    assert clean
    assert len(clean) == 40
    for file in sources:
        file.write_text("b")
        assert revision(workspace, Runner()) == f"{clean}-dirty"
        file.write_text("a")
    elsewhere = workspace_of(tmp_path, tmp_path / "cache", locks=tmp_path / "docs")
    assert revision(elsewhere, Runner()) == f"{clean}-dirty"
    with monkeypatch.context() as mine:
        mine.setenv("TORCH_IMAGES_CONFIG", str(tmp_path / "docs/mine.yaml"))
        assert revision(workspace, Runner()) == f"{clean}-dirty"
    assert revision(workspace, Runner()) == clean
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/new.json").touch()
    assert revision(workspace, Runner()) == f"{clean}-dirty"


def test_bake_file_of_a_compiled_image_has_a_secret_that_is_no_input(
    config: Config, root: Path
) -> None:
    planned = plan_of(config, root, arch="12.0", source="fork")
    base = ReadyBase(layout=Path("/b"), digest="sha256:" + "a" * 64)
    part = Parts(base=base, contexts={"parent": "w"}, compiled={"compile-torch": "/t"})

    def document_with(options: BuildOptions) -> dict[str, Any]:
        return bake_file(
            job_of(Network(), options),
            [planned],
            {planned.target: part},
            folder=Path("/made"),
            tools={"tools-build": "/u", "tools-sbom": "/s"},
        )

    document = document_with(BuildOptions())
    target = document["target"][planned.target]
    own = {"tools": "/u", "sbom": "/s"}
    assert target["contexts"] == {**own, "parent": "w", "compile-torch": "/t"}
    assert target["secret"] == ["type=env,id=compile,env=TORCH_IMAGES_COMPILE"]
    network = Network(compile_cache=(("CCACHE_REMOTE_STORAGE", "redis://x"),))
    secret = environment(network, BuildOptions(jobs=3))["TORCH_IMAGES_COMPILE"]
    plain = {"jobs": 3, "environment": {"CCACHE_REMOTE_STORAGE": "redis://x"}}
    assert json.loads(secret or "") == plain
    share_options = BuildOptions(jobs=3, slice=60, call="a", share="1/2")
    secret = environment(network, share_options)["TORCH_IMAGES_COMPILE"]
    parts = {"slice": 60, "call": "a", "share": "1/2"}
    assert json.loads(secret or "") == {**plain, **parts}
    # A secret's value is no part of BuildKit's key.
    assert document_with(share_options) == document


def test_render_opens_the_network_for_a_shared_cache_only(config: Config, root: Path) -> None:
    planned = plan_of(config, root, arch="12.0", source="fork")
    for shared, network in ((False, "none"), (True, "default")):
        text = render(config, planned.spec, planned.lock, root, shared_cache=shared).dockerfile
        assert text.count(f"RUN --network={network} ") == 2


SNAPSHOT = f"parent snapshot sha256:{'0' * 64} does not exist"


@pytest.mark.parametrize(
    ("outputs", "code"),
    [
        (["ERROR: failed to solve: not found\n", ""], 0),
        ([f"ERROR: failed to solve: failed to prepare x: {SNAPSHOT}: not found\n"] * 2 + [""], 0),
        (["ERROR: failed to solve: not found\n"] * 3, 1),
        (["ERROR: failed to solve: base: not found\n"], 1),
        ([""], 0),
    ],
)
def test_baked_tries_again_what_lost_content(outputs: list[str], code: int) -> None:
    class Losing(Runner):
        def stream(self, command: Sequence[str], **_: Any) -> Completed:
            output = left.pop(0)
            return Completed(int(bool(output)), output)

    left = list(outputs)
    assert baked(["docker"], Losing(), None).code == code
    assert not left


class Kept(FakeEngine):
    """An engine whose images have these labels."""

    def inspect(self, image: str) -> ImageInfo:
        for one in self.images:
            if image in one.tags:
                return ImageInfo(id=one.id, size=7, labels=one.labels, config={}, created="")
        raise UsageError(f"no image {image}", "")


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize(
    ("options", "noted", "inputs", "kept"),
    [
        (BuildOptions(), "sha256:d", "", True),
        (BuildOptions(), "sha256:e", "", False),
        (BuildOptions(), "sha256:d", "sha256:0", False),
        (BuildOptions(no_cache=True), "sha256:d", "", False),
        (BuildOptions(builder="far"), "sha256:d", "", False),
        (BuildOptions(cache_to=("type=inline",)), "sha256:d", "", False),
        (BuildOptions(compression=Compression.SMALL), "sha256:d", "", False),
    ],
    ids=["ours", "of the user", "of other inputs", "no cache", "builder", "cache", "small"],
)
def test_what_the_same_inputs_made_is_kept(
    planned: tuple[ImagePlan, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: BuildOptions,
    noted: str,
    inputs: str,
    kept: bool,
    verified: bool,
) -> None:
    """Beside an image that is not there. The results are in the order of the images.

    An image that passed its checks has lost its candidate tag, and gets it again.
    """
    other, plan = planned
    written = labels.write(CONFIG, plan)
    written |= {f"{OURS}.inputs": inputs} if inputs else {}
    tag = f"torch-cu130:{version(CONFIG, plan)}" if verified else plan.candidate
    engine = Kept(ListedImage(id="sha256:d", tags=(tag,), labels=written))
    job = job_of(Network(), options)
    job = replace(job, engine=engine, workspace=replace(job.workspace, cache=tmp_path))
    built.note(tmp_path, engine, noted)
    asked: list[str] = []

    def fresh(_: Job, images: Sequence[LockedImage]) -> Iterator[BuildResult]:
        asked.extend(image.spec.id for image in images)
        plans = [plan_image(CONFIG, image, ROOT) for image in images]
        return (BuildResult(plan=p, digest="sha256:new", size=1, seconds=1) for p in plans)

    monkeypatch.setattr(build_images, "_build", fresh)
    results = [(result.plan.spec.id, result.digest) for result in build_images.build(job, planned)]
    assert results == [
        (other.spec.id, "sha256:new"),
        (plan.spec.id, "sha256:d" if kept else "sha256:new"),
    ]
    assert asked == [name for name, digest in results if digest == "sha256:new"]
    assert not kept or engine.digest(plan.candidate) == "sha256:d"


def test_a_users_own_torch_is_compiled_again(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs do not say which files it has."""
    [plan] = plan_images(config, [choose(config, cuda="13.0", source="fork")], root, root / "locks")
    assert plan.lock.sources
    sources = replace(plan.lock.sources, unlocked=True)
    image = replace(plan, lock=replace(plan.lock, sources=sources))
    written = labels.write(config, plan_image(config, image, root))
    engine = Kept(ListedImage(id="sha256:d", tags=(plan.candidate,), labels=written))
    job = job_of(Network())
    job = replace(job, engine=engine, workspace=replace(job.workspace, cache=tmp_path))
    built.note(tmp_path, engine, "sha256:d")
    monkeypatch.setattr(build_images, "_build", lambda *_: ())
    with pytest.raises(KeyError, match=image.target):
        build_images.build(job, [image])
