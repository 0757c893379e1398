"""Rendered contexts -> one `docker buildx bake` -> images in the engine, under candidate names.

A build never touches a final tag: that is given by `verify.py` to what passed. A killed build
leaves BuildKit's cache and at most a candidate, so it is safe to repeat.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_images.base import bootstrap
from torch_images.config import Config
from torch_images.engine import Engine
from torch_images.errors import (
    BuildError,
    CommandError,
    DiskError,
    EngineError,
    LockError,
    NetworkError,
    TorchImagesError,
)
from torch_images.lock import WheelLock, lock_path, read_lock
from torch_images.matrix import ImageSpec
from torch_images.network import Network
from torch_images.render import LABEL_PREFIX, render, write_context
from torch_images.runner import Runner
from torch_images.tools import install_tools
from torch_images.workplace import Workplace

CANDIDATE = "torch-images-candidate"

# Unpacked wheels are about 2.4 times their download (measured: 6.3 GB of 2.7). While it builds, an
# image exists as downloaded and unpacked wheels in uv's cache, as a snapshot and as compressed
# layers; the base and BuildKit's own files add about 2 GB.
_DISK_PER_WHEEL_BYTE = 2 * 2.4 + 1.1
_DISK_FIXED = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a user can say about how to build."""

    builder: str = ""
    no_cache: bool = False
    progress: str = "auto"
    mirrors: tuple[str, ...] = ()
    skip_disk_check: bool = False


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An image together with the lock that it is built from."""

    spec: ImageSpec
    lock: WheelLock

    @property
    def target(self) -> str:
        """Its name in the bake file, where a dot would mean an attribute."""
        return self.spec.id.replace(".", "_")

    @property
    def candidate(self) -> str:
        """The tag it has until it is verified."""
        return f"{CANDIDATE}:{self.spec.id}"


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A built image: its manifest's digest, size in the engine in bytes, and the wall time.

    `seconds` covers the whole bake, which may have built several images side by side.
    """

    planned: Planned
    digest: str
    size: int
    seconds: float


def plan(specs: Sequence[ImageSpec], root: Path) -> tuple[Planned, ...]:
    """Pair each image with its lock. Raises LockError for one that is missing or out of step."""
    planned = []
    for spec in specs:
        path = lock_path(root, spec.source.name, spec.cuda.short, spec.base.python)
        lock = read_lock(path)
        locked = lock.versions().get("torch")
        if locked != spec.torch:
            raise LockError(
                f"locks/{path.name} has torch {locked}, images.yaml asks for {spec.torch}",
                "run `invoke lock`",
            )
        planned.append(Planned(spec=spec, lock=lock))
    return tuple(planned)


def build(
    config: Config,
    planned: Sequence[Planned],
    place: Workplace,
    options: BuildOptions,
    *,
    engine: Engine,
    run: Runner,
) -> tuple[BuildResult, ...]:
    """Build images side by side and load them into the engine under their candidate tags.

    Raises DiskError, NetworkError, LockError (a wheel is not the locked one), EngineError or
    BuildError; nothing is tagged then.
    """
    check_buildx(run)
    if not options.skip_disk_check:
        held = engine.label_values(f"{LABEL_PREFIX}.lock")
        check_disk(
            engine.local_root(), [p for p in planned if f"sha256:{p.lock.digest}" not in held]
        )
    started = time.monotonic()
    command = prepare(config, planned, place, options, run=run)
    load = driver(options.builder, run) != "docker"
    place.output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.output, prefix=".bake-") as scratch:
        metadata = Path(scratch, "metadata.json")
        command += ["--metadata-file", str(metadata)]
        for image in planned if load else ():
            archive = Path(scratch, f"{image.target}.tar")
            command += ["--set", f"{image.target}.output={_output(image, archive)}"]
        done = run.stream(command, env=_build_environment(place.network))
        if done.code:
            raise explain(done.output)
        digests = json.loads(metadata.read_text())
        for image in planned if load else ():
            run.run(["docker", "load", "--input", str(Path(scratch, f"{image.target}.tar"))])
    seconds = time.monotonic() - started
    results = []
    for image in planned:
        digest = str(digests[image.target]["containerimage.digest"])
        info = engine.inspect(image.candidate)
        results.append(BuildResult(planned=image, digest=digest, size=info.size, seconds=seconds))
    return tuple(results)


def prepare(
    config: Config,
    planned: Sequence[Planned],
    place: Workplace,
    options: BuildOptions,
    *,
    run: Runner,
) -> list[str]:
    """Make all that the bake needs - bases, tools, contexts, bake file - and return its command."""
    tools = install_tools("tools-build", place, run)
    contexts: dict[str, dict[str, str]] = {}
    for image in planned:
        contexts[image.target] = {"tools": str(tools)}
        if image.spec.base.suite:
            layout = bootstrap(
                image.spec.base,
                cache=place.cache / "bases",
                mirrors=options.mirrors,
                network=place.network,
                run=run,
                fresh=options.no_cache,
            )
            contexts[image.target]["base"] = f"oci-layout://{layout.folder}@{layout.digest}"
        context = render(config, image.spec, image.lock, place.root)
        write_context(context, place.output / image.spec.id)
    bake = bake_file(planned, place, contexts, revision(place.root, run))
    file = place.output / "docker-bake.json"
    file.write_text(json.dumps(bake, indent=2) + "\n")
    if not place.network.on_loopback:
        return bake_command((file,), options)
    host = place.output / "docker-network.yaml"
    host.write_text(json.dumps(host_network(planned), indent=2) + "\n")
    command = bake_command((host, file), options)
    if "--allow" in run.run(["docker", "buildx", "bake", "--help"]).output:
        # Since buildx 0.17 the host's network must be granted; older ones lack the word.
        command.append("--allow=network.host")
    return command


def bake_command(files: Sequence[Path], options: BuildOptions) -> list[str]:
    """The command that builds every target of bake files; the last one has the last word.

    Attestations are made beside the image after the build, so that its digest depends on content
    alone.
    """
    command = ["docker", "buildx", "bake", *(f"--file={file}" for file in files)]
    command += ["--provenance=false", "--sbom=false", f"--progress={options.progress}"]
    if options.builder:
        command.append(f"--builder={options.builder}")
    if options.no_cache:
        command.append("--no-cache")
    return command


def bake_file(
    planned: Sequence[Planned],
    place: Workplace,
    contexts: Mapping[str, Mapping[str, str]],
    commit: str | None,
) -> dict[str, Any]:
    """The bake definition: a target per image, with the named contexts given for each.

    Proxies stand in it by name only; bake takes their values from the environment.
    """
    network = place.network
    secrets = ["type=env,id=index,env=TORCH_IMAGES_INDEX"] if network.index else []
    if network.ca_bundle:
        secrets.append(f"type=file,id=ca,src={network.ca_bundle}")
    targets = {}
    for image in planned:
        labels = {"org.opencontainers.image.revision": commit} if commit else {}
        base = contexts[image.target].get("base", image.spec.base.image(image.spec.cuda.version))
        labels["org.opencontainers.image.base.digest"] = base.rpartition("@")[2]
        target: dict[str, Any] = {
            "context": str(place.output / image.spec.id),
            "contexts": dict(contexts[image.target]),
            "platforms": ["linux/amd64"],
            "args": {
                "SOURCE_DATE_EPOCH": str(image.lock.epoch),
                **{name: f"${{{name}}}" for name, _ in network.proxies},
            },
            "labels": labels,
            "secret": secrets,
            "output": [_output(image)],
        }
        targets[image.target] = target
    bake: dict[str, Any] = {
        "group": {"default": {"targets": [image.target for image in planned]}},
        "target": targets,
    }
    if network.proxies:
        bake["variable"] = {name: {"default": ""} for name, _ in network.proxies}
    return bake


def host_network(planned: Sequence[Planned]) -> dict[str, Any]:
    """A Compose file that gives every target the host's network.

    Bake reads it before its own file, which keeps the last word on contexts. The format of that
    file has no word for this before buildx 0.14.
    """
    build = {"context": ".", "network": "host"}
    return {"services": {image.target: {"build": build} for image in planned}}


def revision(root: Path, run: Runner) -> str | None:
    """The commit that `root` is at, with "-dirty" when files differ from it; None without git."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    head = run.run(["git", "-C", str(root), "rev-parse", "--verify", "HEAD"], check=False)
    if head.code:
        return None
    status = run.run(["git", "-C", str(root), "status", "--porcelain"], check=False)
    return head.output.strip() + ("-dirty" if status.output.strip() else "")


def check_buildx(run: Runner) -> None:
    """Raise EngineError unless the docker CLI has buildx."""
    if not shutil.which("docker") or run.run(["docker", "buildx", "version"], check=False).code:
        raise EngineError(
            "docker buildx is not installed",
            "install docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's packages)",
        )


def driver(builder: str, run: Runner) -> str:
    """The driver of a buildx builder, such as "docker". Raises EngineError for an unknown one."""
    command = ["docker", "buildx", "inspect", *([builder] if builder else [])]
    try:
        described = run.run(command).output
    except CommandError:
        raise EngineError(f"no builder '{builder}'", "see `docker buildx ls`") from None
    found = re.search(r"^Driver:\s*(\S+)", described, re.MULTILINE)
    return found[1] if found else "docker"


def disk_needed(planned: Sequence[Planned]) -> int:
    """Bytes that building these images takes from nothing; wheels they share count once."""
    wheels = {wheel for image in planned for wheel in image.lock.wheels}
    return int(sum(wheel.size for wheel in wheels) * _DISK_PER_WHEEL_BYTE) + _DISK_FIXED


def check_disk(data_root: Path | None, planned: Sequence[Planned]) -> None:
    """Raise DiskError where the engine's disk cannot hold images that it has nothing of yet.

    `data_root` is None for a remote engine, whose disk cannot be seen from here.
    """
    if data_root is None or not planned:
        return
    free, needed = shutil.disk_usage(data_root).free, disk_needed(planned)
    if free < needed:
        raise DiskError(
            f"building needs about {needed / 1e9:.0f} GB, {data_root} has {free / 1e9:.1f} GB free",
            "free some with `invoke clean` or `docker system prune`, or, when most layers are "
            "built already, go on with --skip-disk-check",
        )


_FAILURES: tuple[tuple[str, type[TorchImagesError], str, str], ...] = (
    (
        r"no space left on device|No space left on device|disk quota exceeded",
        DiskError,
        "the disk filled up during the build",
        "free some space (`invoke clean`, `docker system prune`) and build again",
    ),
    (
        (
            r"Hash mismatch for `(?P<what>[^`]+)`.*?Expected:\s*(?P<want>sha256:\w+)"
            r".*?Computed:\s*(?P<got>sha256:\w+)"
        ),
        LockError,
        "{what} is not the wheel that was locked: expected {want}, found {got}",
        "the index serves another file; if that is meant, run `invoke lock`",
    ),
    (
        (
            r"Because (?P<what>\S+) was not found in the (?:package registry|cache|provided)"
            r"|(?P<what2>\S+) has no wheels? (?:with|that)"
        ),
        LockError,
        "a locked wheel is not in the package index ({what})",
        "run `invoke lock`, or name an index that has it in UV_DEFAULT_INDEX",
    ),
    (
        (
            r"error sending request|Could not connect|dns error|Failed to fetch|"
            r"Temporary failure resolving|Connection refused|client error \(Connect\)|"
            r"failed to do request|invalid peer certificate"
        ),
        NetworkError,
        "a package index or registry could not be reached during the build",
        (
            "check network and proxy (HTTPS_PROXY), certificates (SSL_CERT_FILE) and mirror "
            "(UV_DEFAULT_INDEX)"
        ),
    ),
    (
        r"buildkit.*not (?:enabled|supported)|unknown flag: --",
        EngineError,
        "this docker buildx is too old",
        "0.13 or newer is needed",
    ),
)


def explain(output: str) -> Exception:
    """The user's view of a failed bake, from its last lines."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    joined = " ".join(re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", line) for line in plain.splitlines())
    for pattern, kind, message, hint in _FAILURES:
        if match := re.search(pattern, joined, re.DOTALL):
            words = match.groupdict("")
            words["what"] = words.get("what") or words.get("what2") or ""
            error: Exception = kind(message.format(**words), hint)
            return error
    lines = [line for line in plain.splitlines() if re.match(r"(?:ERROR|error)[: ]", line)]
    return BuildError(f"the build failed: {lines[-1] if lines else plain.strip()[-200:]}")


def _output(image: Planned, archive: Path | None = None) -> str:
    """The exporter: into the engine, or as an archive to load where the builder is elsewhere."""
    if archive:
        where = f"type=docker,name={image.candidate},dest={archive}"
    else:
        where = f"type=image,name={image.candidate},unpack=true"
    return f"{where},oci-mediatypes=true,compression=zstd,force-compression=true"


def _build_environment(network: Network) -> dict[str, str | None]:
    index = {"TORCH_IMAGES_INDEX": network.index} if network.index else {}
    return {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1", **dict(network.proxies), **index}
