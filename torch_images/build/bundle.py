"""A folder with all inputs of images: filled where there is a network, built from without one.

It is laid out as this user's cache, with the wheels beside. A build without network takes it as its
cache, and finds everything there; wheels it gets from an index on loopback, which the folder backs.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.server
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from torch_images.build.bake import BuildOptions
from torch_images.build.plan import LockedImage
from torch_images.build.prepare import Preparer
from torch_images.config.lock_requests import tool_input, tools_inputs, variant_inputs
from torch_images.config.types import Base, Config
from torch_images.errors import LockError, UsageError
from torch_images.fetch.checkout import tree_folder
from torch_images.fetch.download import PARTIAL, Pinned, is_file
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host import outputs
from torch_images.host.cache import Part
from torch_images.host.loopback import serving
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.layers.make import Progress, no_progress
from torch_images.locks.debs import DebLock
from torch_images.locks.wheels import LockedWheel, read_wheels
from torch_images.platforms import AMD64

MARK = ".torch-images-inputs"  # lies in each such folder
WHEELS = "wheels"  # its folder with wheels, each under its own name
_ABOUT = "Inputs of torch-images, from `invoke lock --fetch`. Builds check each file again.\n"
_KEPT = (WHEELS, Part.DEBS, Part.ARCHIVES, Part.SOURCES)  # where the inputs lie
_DOWNLOADS = 4
_ADVICE = "name a new or an empty folder, or one that --fetch has made"


def check_bundled(images: Iterable[LockedImage]) -> None:
    """Raise UsageError for an image with inputs that no such folder can have."""
    for image in images:
        spec, lock = image.spec, image.lock
        # It would need a base for the builder's own processor, too, and cuobjdump for its checks.
        if spec.platform != AMD64:
            raise UsageError(
                f"a folder of inputs is for {AMD64} only, {spec.id} is for {spec.platform}",
                "build it where there is a network",
            )
        if lock.base.image:
            raise UsageError(
                f"base {spec.base.name} is an image of a registry, which a folder of inputs lacks",
                "take base bookworm or trixie",
            )
        if other := next((wheel for wheel in _image_wheels(image) if wheel.index), None):
            raise UsageError(
                f"{spec.id} has wheels of {other.index}, and a folder of inputs has one index",
                "take a release of torch of the main index",
            )


def fetch_inputs(
    config: Config,
    images: Sequence[LockedImage],
    folder: Path,
    workspace: Workspace,
    options: BuildOptions,
    *,
    run: Runner,
    progress: Progress = no_progress,
) -> int:
    """Put all inputs of images into a folder, but for those that it has. Returns their bytes.

    Each file is checked against its lock, and gets its name once it is whole; a run that was broken
    off goes on with the next file. `progress` shows bytes of wheels. NVIDIA's compat library may be
    left out, as `options.compat` says. Raises UsageError for a folder that is not ours, LockError,
    NetworkError and DiskError.
    """
    check_bundled(images)
    folder = _claim(folder)
    wheels = _wheels(images, workspace.locks)
    here = replace(workspace, cache=folder)
    with _alone(folder):
        preparer = Preparer(config, here, replace(options, locked=True), run)
        preparer.first(images)
        for image in images:
            for base, lock in _debs(config, image):
                preparer.debs(base, lock)
        _fetch_wheels(wheels, folder / WHEELS, workspace.network, progress)
    kept = [path for name in _KEPT for path in (folder / name).rglob("*")]
    return sum(path.stat().st_size for path in kept if path.is_file())


@contextlib.contextmanager
def offline(
    config: Config,
    images: Sequence[LockedImage],
    folder: Path,
    workspace: Workspace,
    options: BuildOptions,
) -> Iterator[tuple[Workspace, BuildOptions]]:
    """Workspace and options of a build that has its inputs from a folder and asks no other host.

    Raises UsageError for a folder that `fetch_inputs` has not made, and LockError, before anything
    else is done, for one that lacks an input or has another file in its place.
    """
    check_bundled(images)
    if options.builder:
        raise UsageError("--offline builds with this machine's engine", "leave --builder out")
    if not (folder / MARK).is_file():
        raise UsageError(
            f"{folder} is not a folder of inputs",
            f"fill it with `invoke lock --fetch {folder} --image IMAGE`",
        )
    for image in images:
        # A pruned image has the inputs of the one that is not, whose identifier can be selected.
        name = replace(image.spec, prune=False).id
        if lacking := _missing(config, image, folder, workspace.locks, options.compat):
            more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
            raise LockError(
                f"{folder} lacks {lacking[0]}{more}",
                f"run `invoke lock --fetch {folder} --image {name}` with a network",
            )
    wheels = {wheel: folder / WHEELS / wheel.filename for wheel in _wheels(images, workspace.locks)}
    with _index(wheels) as url:
        network = Network(
            index=f"{url}/simple",
            compat_mirror=url,
            source_mirror=url,
            compile_cache=workspace.network.compile_cache,
        )
        yield (
            replace(workspace, cache=folder, network=network),
            replace(options, locked=True, mirrors=(url,)),
        )


def _debs(config: Config, image: LockedImage) -> Iterator[tuple[Base, DebLock]]:
    """The locks of an image's Debian packages, each with the base whose mirrors have them."""
    spec, lock = image.spec, image.lock
    yield spec.base, lock.base
    for request, held in (
        (variant_inputs(config, spec)[1], lock.extra_debs),
        (tools_inputs(config, spec)[1], lock.tool_debs),
    ):
        if request and held:
            yield request.base or spec.base, held


def _image_wheels(image: LockedImage) -> Iterator[LockedWheel]:
    """The wheels of an image, and of what is installed while it is built."""
    lock = image.lock
    for held in (lock.wheels, lock.extra_wheels, lock.tools, *lock.unpacked, lock.build, lock.sbom):
        yield from held.wheels if held else ()


def _wheels(images: Iterable[LockedImage], locks: Path) -> tuple[LockedWheel, ...]:
    """Every wheel that the builds and the checks of images take, once."""
    verify = read_wheels(tool_input("tools-verify").path(locks))
    held = [wheel for image in images for wheel in _image_wheels(image)]
    return tuple(dict.fromkeys([*held, *verify.wheels]))


def _missing(
    config: Config, image: LockedImage, folder: Path, locks: Path, compat: str
) -> list[str]:
    """What a folder lacks of an image, in words. A file that is not the locked one counts."""
    files: list[tuple[Pinned, Path]] = []
    files += [(wheel, folder / WHEELS / wheel.filename) for wheel in _wheels([image], locks)]
    debs = [lock for _, lock in _debs(config, image)]
    debs += [image.lock.compat] if image.lock.compat and compat == "required" else []
    files += [(d, folder / Part.DEBS / f"{d.sha256}.deb") for lock in debs for d in lock.debs]
    files += [(a, folder / Part.ARCHIVES / a.sha256) for a in image.lock.all_archives]
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda file: is_file(*file), files)
        lacking = [
            f.filename for (f, _), is_there in zip(files, found, strict=True) if not is_there
        ]
    trees = image.lock.sources.trees if image.lock.sources else ()
    lacking += [
        f"the tree of {tree.name} at {tree.commit}"
        for tree in trees
        if not tree_folder(tree, folder).exists()
    ]
    return lacking


def _fetch_wheels(
    wheels: Sequence[LockedWheel], folder: Path, network: Network, progress: Progress
) -> None:
    """Put wheels into a folder, but for those that it has."""
    folder.mkdir(exist_ok=True)
    missing = [wheel for wheel in wheels if not is_file(wheel, folder / wheel.filename)]
    total, done = sum(wheel.size for wheel in missing), 0
    with (
        progress() as show,
        PackageIndex(network) as index,
        ThreadPoolExecutor(_DOWNLOADS) as pool,
    ):
        fetched = {pool.submit(index.fetch, wheel, folder): wheel for wheel in missing}
        try:
            for each in as_completed(fetched):
                each.result()
                done += fetched[each].size
                show(fetched[each].filename, done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _claim(folder: Path) -> Path:
    """The absolute path of a folder of inputs, made where there is none."""
    path = folder.absolute()
    with outputs.saying(folder, _ADVICE):
        if not (path / MARK).is_file():
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise UsageError(f"{folder} is not a folder of inputs, and not empty", _ADVICE)
            path.mkdir(parents=True, exist_ok=True)
            (path / MARK).write_text(_ABOUT)
    return path


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder, and remove what a killed one left half done."""
    with outputs.saying(folder, _ADVICE):
        guard = (folder / MARK).open("r+")
    with guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        for name in _KEPT:
            for left in (folder / name).glob(f"{PARTIAL}*"):
                left.unlink()
        yield


@contextlib.contextmanager
def _index(wheels: Mapping[LockedWheel, Path]) -> Iterator[str]:
    """Serve wheels as an index (PEP 503), below "simple", while this is open; yields the URL."""
    files = {f"/simple/{w.name}/{w.filename}": path for w, path in wheels.items()}
    pages: dict[str, str] = {}
    for wheel in wheels:
        link = f'<a href="{wheel.filename}#sha256={wheel.sha256}">{wheel.filename}</a>\n'
        page = f"/simple/{wheel.name}/"
        pages[page] = pages.get(page, "") + link

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):  # whoever asked has what it wanted
                self._answer()

        do_HEAD = do_GET  # noqa: N815

        def _answer(self) -> None:
            path, page = files.get(self.path), pages.get(self.path, "").encode()
            size = path.stat().st_size if path else len(page)
            self.send_response(200 if path or page else 404)
            self.send_header("Content-Type", "text/html" if page else "application/octet-stream")
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command == "HEAD":
                return
            if path:
                with path.open("rb") as stream:
                    shutil.copyfileobj(stream, self.wfile, 1 << 20)
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Keep requests out of the output."""

    with serving(Handler) as url:
        yield url
