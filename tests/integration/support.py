"""What integration tests share beside fixtures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.releases import T130
from tests.servers import closed_port
from torch_images.build.build import LOST
from torch_images.build.plan import ImagePlan
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace, scratch_room
from torch_images.verify.suites import Check, suite_hash
from torch_images.verify.verify import VerifyReport, claim, write_report

ROOT = Path(__file__).resolve().parents[2]
TESTS = "torch-images-test"  # the repository of what only tests make
DEFAULT = f"cu130-torch{T130}-trixie-runtime"  # what `invoke build` builds
NARROW = f"cu130-sm90-torch{T130}-trixie-runtime"
SITE = "/opt/venv/lib/python3.13/site-packages"


@dataclass(frozen=True)
class Built:
    """One image as `invoke build --json` reported it."""

    id: str
    digest: str
    tags: tuple[str, ...]
    observed: dict[str, str]
    checks: dict[str, int]


def make_image(*words: str) -> Built:
    """An image, built, verified and tagged by the command that users type."""
    done = invoke("build", *words, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [image] = json.loads(done.stdout)["images"]
    facts = (image[name] for name in ("observed", "checks"))
    return Built(image["id"], image["digest"], tuple(image["tags"]), *facts)


def build_stand_in(
    folder: Path, lines: Sequence[str], tag: str, engine: Engine, *options: str, day: int = 0
) -> None:
    """Build an image of a folder's files, of inputs of a day, under a tag; `lines` say how."""
    (folder / "Dockerfile").write_text("\n".join(lines))
    new = f"{tag}-new"
    output = f"type=image,name={new},unpack=true,oci-mediatypes=true,compression=zstd"
    command = ["docker", "buildx", "build", "--provenance=false", f"--output={output}", *options]
    command += [f"--build-arg=SOURCE_DATE_EPOCH={1_790_000_000 + day * 86400}", str(folder)]
    Runner().run(command)
    engine.tag(new, *tag.rsplit(":", 1))
    engine.untag(new)  # whose time BuildKit dates back to SOURCE_DATE_EPOCH


def write_passed(
    config: Config, workspace: Workspace, plan: ImagePlan, digest: str, seen: Mapping[str, str]
) -> None:
    """Write the report of an image that passed its checks."""
    report = VerifyReport(
        digest=digest,
        id=plan.spec.id,
        suite=suite_hash(workspace.root, claim(config, plan)),
        checks=(Check(name="image/test_x/test_y", outcome="passed", seconds=0),),
        observed={**seen, **{f"arch {a.name}": "native" for a in plan.spec.architectures}},
        seconds=0,
    )
    write_report(report, workspace)


def images(engine: Engine) -> dict[str, str]:
    """The default image in the engine by each of its tags, candidates too.

    What tests of the other lane make at the same time is not among them.
    """
    own = (f"torch-images-candidate:{DEFAULT}", "torch-cu130:latest", f"torch-cu130:{T130}-runtime")
    return {tag: engine.inspect(tag).id for tag in engine.tags("torch-") if tag.startswith(own)}


def invoke(
    *words: str, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a verb as a user does, with its output captured.

    In a copy of the project it reads the locks of the copy, unless `env` says otherwise.
    """
    own = {"TORCH_IMAGES_LOCKS": str(cwd / "locks")} if cwd != ROOT else {}
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **own, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    """What a command of docker's says, on both of its streams; a build may be tried three times."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    for _ in range(2):
        done = run()
        if not LOST.search(done.stdout):
            return done
    return run()


def as_root(*words: str) -> list[str]:
    """A command that runs as root, with this process's environment but sudo's own PATH.

    It is the words themselves for root. Everybody else needs sudo without a password, as on
    GitHub's runners; the test fails where that is refused.
    """
    if os.geteuid() == 0:
        return [*words]
    sudo = ["sudo", "--non-interactive", "--preserve-env"]
    command = [*sudo, "true"]
    if (
        not shutil.which("sudo")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.fail(f"needs root for {words[0]}: run as root, or allow `sudo -n`", pytrace=False)
    return [*sudo, *words]


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user can enter, as a rootless bootstrap must.

    pytest's own are closed to others.
    """
    with tempfile.TemporaryDirectory(dir=scratch_room(), prefix="torch-images-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def share(workspace: Workspace, cache: Path, *names: str) -> None:
    """Put folders of the machine's cache into another cache, so that nothing is fetched again.

    On a new machine they are not there yet, and a link to nothing is no folder.
    """
    for name in names:
        (workspace.cache / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(workspace.cache / name)


def facts(**values: Any) -> dict[str, Any]:
    """Options for a container without network, as most of these tests want it."""
    return {"network_mode": "none", **values}


def quiet(**values: Any) -> dict[str, Any]:
    """The same, without the line that says which libcuda was chosen."""
    return facts(environment={"TORCH_IMAGE_QUIET": "1"}, **values)


@contextlib.contextmanager
def running(
    image: str,
    *words: str,
    options: tuple[str, ...] = (),
    until: str = "ready",
    network: str = "none",
) -> Iterator[str]:
    """A container that has printed a line with `until`; its id."""
    command = ["docker", "run", "--detach", f"--network={network}", *options, image, *words]
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    name = started.stdout.strip()
    try:
        with subprocess.Popen(
            ["docker", "logs", "--follow", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as log:
            assert log.stdout is not None
            assert any(until in line for line in log.stdout), f"it ended without '{until}'"
            log.kill()
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


def online(network: Network) -> tuple[str, ...]:
    """Options of `docker run` for a container that reaches the package index as the host does."""
    variables = dict(network.proxies)
    if network.index:
        variables |= dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), network.index)
    mounts: tuple[str, ...] = ()
    if network.ca_bundle:
        variables |= dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), "/run/ca.crt")
        mounts = (f"--volume={network.ca_bundle.resolve()}:/run/ca.crt:ro",)
    return (*mounts, *(f"--env={name}={value}" for name, value in variables.items()))


class Registry:
    """A real registry on loopback, Debian's docker-registry, that can be killed and started again.

    `folder` keeps its data; with `password`, it wants a user "ci" with that ("secret" is known).
    """

    # bcrypt's of "secret"
    _HASH = "ci:$2b$05$uGz1DsCwti/kpgYPJuUq8ueAGlSu9XhwLcuaAwV0.10vn925JDypi\n"

    def __init__(self, folder: Path, *, password: bool = False) -> None:
        folder.mkdir()
        self.host = f"127.0.0.1:{closed_port()}"
        self.program = registry_program(folder)
        self._file, self._data = folder / "config.yml", folder / "data"
        settings: dict[str, Any] = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self._data)}},
            "http": {"addr": self.host},
        }
        if password:
            (folder / "users").write_text(self._HASH)
            settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "users")}}
        self._file.write_text(json.dumps(settings))
        self._process: subprocess.Popen[str] | None = None
        self._drain = threading.Thread()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [str(self.program), "serve", str(self._file)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        assert any("listening on" in line for line in self._process.stderr)
        self._drain = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._drain.start()

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._drain.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def remove(self) -> None:
        """End it and remove what it holds: pytest keeps folders, and an image has gigabytes."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)


def registry_program(folder: Path) -> Path:
    """Debian's docker-registry; unpacked into a folder, not installed, where there is none."""
    if installed := shutil.which("docker-registry"):
        return Path(installed)
    return unpacked(folder, "docker-registry") / "usr" / "bin" / "docker-registry"


def unpacked(folder: Path, package: str) -> Path:
    """The files of a Debian package, in a new folder below `folder`; nothing is installed."""
    download = ["apt-get", "-qq", "download", package]
    if subprocess.run(download, cwd=folder, check=False, capture_output=True).returncode:
        subprocess.run(as_root("apt-get", "-qq", "update"), check=True, capture_output=True)
        subprocess.run(download, cwd=folder, check=True, capture_output=True)
    [archive] = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", archive, folder / "program"], check=True)
    return folder / "program"


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry for as long as the block lasts; its address."""
    running = Registry(folder)
    running.start()
    try:
        yield running.host
    finally:
        running.remove()


# An engine takes the system's containerd, with all images of the first engine, where one listens in
# /run/containerd. In a mount namespace with another /run/containerd it starts its own.
_NAMESPACE = '[ ! -d /run/containerd ] || mount -t tmpfs none /run/containerd; shift 3; exec "$@"'
# The engine of another system, whose root is the first word; the next two are the engine's folders,
# which have the same paths in there.
_CHROOT = """
set -eu
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs none "$root/run"
for folder in "$2" "$3"; do
    mkdir -p "$root$folder"
    mount --bind "$folder" "$root$folder"
done
shift 3
exec chroot "$root" "$@"
"""


@contextlib.contextmanager
def second_engine(
    *, runs: bool = False, settings: Mapping[str, Any] | None = None, root: Path | None = None
) -> Iterator[str]:
    """Another dockerd with everything of its own; its address.

    Unless it `runs` containers, whatever it is to run fails: it can take layers from a cache, but
    never make one itself. `settings` go to its daemon.json; `features` are added to its own.
    `root` is the root of the system with that dockerd, None for this one.
    """
    as_root("dockerd")  # or fail before anything is made
    # A socket's whole path may have 104 letters.
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
    data = Path(tempfile.mkdtemp(prefix="engine-", dir=scratch_room()))  # has room for an image
    daemon = dict(settings or {})
    daemon["features"] = {"containerd-snapshotter": True, **daemon.get("features", {})}
    (folder / "daemon.json").write_text(json.dumps(daemon))
    (folder / "bin").mkdir()
    if not runs:
        (folder / "bin" / "runc").symlink_to("/bin/false")
    address = f"unix://{folder}/docker.sock"
    # Debian's users do not have dockerd's folder in PATH, nor that of iptables.
    path = f"PATH={folder}/bin:{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
    command = ["unshare", "--mount", "sh", "-c", _CHROOT if root else _NAMESPACE, "sh"]
    command += [str(root), str(folder), str(data), "env", path]
    command += ["dockerd", f"--config-file={folder}/daemon.json", f"--host={address}"]
    command += [f"--data-root={data}", f"--exec-root={folder}/exec"]
    # With a bridge of its own, or none, it would take the first engine's away.
    command += [f"--pidfile={folder}/pid", "--bridge=docker0", "--iptables=false"]
    command += ["--ip6tables=false"]
    try:
        with subprocess.Popen(as_root(*command), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line)
                if "API listen on" in line:
                    break
            else:
                raise AssertionError("".join(lines[-5:]))
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            try:
                yield address
            finally:
                # sudo itself passes no signal on that comes from its own group of processes.
                subprocess.run(as_root("kill", (folder / "pid").read_text()), check=True)
                drain.join()
                process.wait()
    finally:
        subprocess.run(as_root("rm", "-rf", str(folder), str(data)), check=True)
