"""The same digest from every independent build, and the difference named where there is one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.decisions import NOTES
from tests.integration.drivers import repository
from tests.integration.newer_engine import newer_engine
from tests.integration.standins import commit, replace, served, small_project
from tests.integration.support import (
    DEFAULT,
    ROOT,
    Built,
    as_root,
    docker,
    invoke,
    open_folder,
)
from tests.packages import elf
from tests.releases import T130
from tests.wheels import make_wheel
from torch_images.build import labels
from torch_images.config.load import load_config
from torch_images.fetch.tools import install_tools
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.facts import with_facts
from torch_images.locks.wheels import requirements_text
from torch_images.platforms import AMD64
from torch_images.verify import ledger

# Not the images that other modules build meanwhile: a candidate has one name in the engine.
CANDIDATE = f"torch-images-candidate:cu130-sm89-torch{T130}-trixie-runtime-compat"
BUILD = (
    *("build", "--cuda", "13.0", "--arch", "8.9", "--compat"),
    *("--unverified", "--json"),
)
NOTHING = "--no-cache"


@dataclass(frozen=True)
class Small:
    """A committed project whose image is quick to build, and what its builds need."""

    folder: Path
    env: dict[str, str]

    def build(self, *words: str) -> str:
        """Build, even if there is an image of the same inputs; the digest."""
        docker("rmi", CANDIDATE)
        done = invoke(*BUILD, *words, cwd=self.folder, env=self.env)
        assert done.returncode == 0, done.stderr[-3000:]
        return str(json.loads(done.stdout)["images"][0]["digest"])


@pytest.fixture(scope="module")
def small(small_locks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """The small project; its index has stand-in wheels, and sends elsewhere for real ones."""
    scratch = tmp_path_factory.mktemp("small")
    folder = scratch / "project"
    pages = small_project(folder, small_locks, scratch / "wheels")
    compat = with_facts(load_config(folder / "images.yaml"), folder / "locks").compat
    with served(pages) as index, repository(elf(NOTES["13.0"])) as (url, key):
        replace(folder, "images.yaml", compat.repository(AMD64), url)
        replace(folder, "images.yaml", compat.key, key)
        env = {"UV_DEFAULT_INDEX": index}
        done = invoke("lock", "--select", "compat-cu130", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        commit(folder)
        yield Small(folder, {**env, "TORCH_IMAGES_CACHE": str(scratch / "cache")})


@pytest.fixture(scope="module")
def original(small: Small, engine: Engine) -> Iterator[str]:
    """The digest of a first build of the small project, from nothing."""
    yield small.build(NOTHING)
    engine.untag(CANDIDATE)


def clone(small: Small, folder: Path) -> Small:
    """Another checkout, its files made in the opposite order and closed to others."""
    tracked = subprocess.run(
        ["git", "-C", small.folder, "ls-files"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    old_mask = os.umask(0o077)
    try:
        shutil.copytree(small.folder / ".git", folder / ".git")
        for name in sorted(filter(None, tracked), reverse=True):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((small.folder / name).read_bytes())
            target.chmod(0o700 if os.access(small.folder / name, os.X_OK) else 0o600)
    finally:
        os.umask(old_mask)
    return Small(folder, small.env)


@contextlib.contextmanager
def one_processor() -> Iterator[None]:
    """Keep this process, and the engine that setup-engine started, to one processor.

    Every build step then has one. Any other engine is somebody else's, and left alone.
    """
    pid_file = Path("/run/torch-images-dockerd.pid")
    pids = [int(pid_file.read_text())] if pid_file.exists() and os.geteuid() == 0 else []
    for pid in pids:  # grows while it is read: children of children, too
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    threads = [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    before = os.sched_getaffinity(0)

    def allow(processors: set[int]) -> None:
        for thread in (0, *threads):  # 0 is this thread
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)

    allow({min(before)})
    try:
        yield
    finally:
        threads = [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").glob("*")]
        allow(set(before))


def test_build_at_another_commit_has_the_same_digest(
    small: Small, original: str, tmp_path: Path
) -> None:
    """With an untracked file, and with no repository at all, too."""
    other = clone(small, tmp_path / "other")
    (other.folder / "docs").mkdir()
    (other.folder / "docs" / "page.md").write_text("\n")
    commit(other.folder)
    assert other.build() == original
    (other.folder / "untracked").write_text("x")
    assert other.build() == original
    shutil.rmtree(other.folder / ".git")
    assert other.build() == original


# The words after the first four run in the folder that is the first one, as a user of the number 12345
# without any rights, on a machine of another name whose apt trusts no keys. The second word is that
# user's home, the third the group that may use the engine. The fourth is this Python's own folder, which
# may lie in a home that nobody else can enter, so it is mounted below the home.
_ELSEWHERE = """
set -eu
cd -- "$1"
hostname perturbed
mount -t tmpfs none /etc/apt/trusted.gpg.d
for file in passwd group subuid subgid; do cp "/etc/$file" "$2" 2>/dev/null || touch "/etc/$file"; done
echo "somebody:x:12345:12345::$2:/bin/sh" >>"$2/passwd"
echo "somebody:x:12345:" >>"$2/group"
echo "somebody:100000:65536" | tee -a "$2/subuid" >>"$2/subgid"
for file in passwd group subuid subgid; do mount --bind "$2/$file" "/etc/$file"; done
chown -R 12345:12345 "$1/." "$2"
mkdir "$2/python"
mount --bind "$4" "$2/python"
umask 077
groups=$3
shift 4
exec setpriv --reuid=12345 --regid=12345 --groups="$groups" -- "$@"
"""


def test_build_depends_only_on_its_inputs(small: Small, original: str) -> None:
    """Another folder, deeper, with spaces, through a link, its files made in another order; another
    user, environment, umask and host name; a host without Debian's keys; no cache of any kind: the
    digest is the same.
    """
    socket = Path("/var/run/docker.sock")
    with open_folder() as room:
        deep = room / "a much longer" / "path with spaces" / "and one more folder" / "p"
        deep.parent.mkdir(parents=True)
        other = clone(small, deep)
        shutil.rmtree(deep / ".git")
        link, home = room / "link", room / "home"
        link.symlink_to(deep)
        home.mkdir()
        changed = elsewhere(other, link, home)
        words = ["unshare", "--uts", "--mount", "sh", "-c", _ELSEWHERE, "sh"]
        words += [str(link), str(home), str(socket.stat().st_gid), sys.base_prefix]
        words += ["env", *(f"{name}={value}" for name, value in changed.items())]
        words += [f"{home}/python/bin/python3", "-m", "invoke", *BUILD, NOTHING]
        done = subprocess.run(as_root(*words), capture_output=True, text=True, check=False)
        subprocess.run(as_root("rm", "-rf", str(room / "home")), check=True)
        subprocess.run(as_root("chown", "-R", str(os.getuid()), str(room)), check=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["images"][0]["digest"] == original


@pytest.mark.slow
def test_build_with_one_processor_has_the_same_digest(small: Small, original: str) -> None:
    """Slow for the other lane, too, whose engine this is."""
    with one_processor():
        assert small.build(NOTHING) == original


def elsewhere(other: Small, link: Path, home: Path) -> dict[str, str]:
    """The environment of another user on another machine."""
    return {
        **other.env,
        "TORCH_IMAGES_CACHE": str(home / "cache, also with spaces"),
        "TORCH_IMAGES_LOCKS": str(link / "locks"),
        "HOME": str(home),
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "TMPDIR": str(home),
        # sudo has a PATH of its own.
        "PATH": os.environ["PATH"],
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "tr_TR.UTF-8",
        "LANGUAGE": "tr",
        "PYTHONHASHSEED": "4711",
        "SOURCE_DATE_EPOCH": "1",
        "USER": "somebody",
    }


@pytest.mark.slow
def test_a_newer_engine_makes_the_same_digest(
    small: Small, original: str, built: Built, tmp_path: Path
) -> None:
    """Of a small image, with its own cache, and of the real one: from another commit, with a file
    that git does not know.
    """
    other = clone(small, tmp_path / "other")
    (other.folder / "untracked").write_text("x")
    with newer_engine() as newer:
        assert Small(other.folder, {**other.env, **newer}).build(NOTHING) == original
        done = invoke("build", "--select", DEFAULT, "--unverified", "--json", env=newer)
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout)["images"][0]["digest"] == built.digest


def packed_layers(engine: Engine, digest: str) -> list[dict[str, Any]]:
    """The layers in the manifest of an image."""
    with engine.blobs(digest) as blob:
        layers: list[dict[str, Any]] = json.loads(blob(digest).read())["layers"]
    return layers


@pytest.mark.slow
def test_small_layers_hold_the_same(small: Small, original: str, engine: Engine) -> None:
    """Built after a fast one, whose steps BuildKit keeps; and built again from nothing.

    A fast one that is built afterwards is as it was before.
    """
    assert small.build() == original  # the test before may have taken its last name away
    fast, layers = packed_layers(engine, original), engine.inspect(original).layers
    # Read before the other build takes its name, with which it goes.
    assert labels.read(engine.inspect(original).labels).compression == ""
    digest = small.build("--compression", "small")
    packed = packed_layers(engine, digest)
    assert engine.digest(CANDIDATE) == digest != original
    assert labels.read(engine.inspect(digest).labels).compression == "small"
    # The same tars, and one more, which keeps BuildKit from taking one image's for the other's.
    small_layers = engine.inspect(digest).layers
    assert [layer for layer in small_layers if layer in layers] == list(layers)
    assert len(small_layers) == len(layers) + 1
    sizes = {d: each["size"] for d, each in zip(small_layers, packed, strict=True)}
    for tar, large in zip(layers, fast, strict=True):
        assert sizes[tar] <= large["size"]
    digests = {each["digest"] for each in packed}
    assert any(large["digest"] not in digests for large in fast)
    done = invoke("reproduce", CANDIDATE, "--json", cwd=small.folder, env=small.env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["manifests"] == [digest, digest]
    assert small.build() == original


@pytest.mark.slow
def test_reproduce_names_a_date_in_a_layer(small: Small, engine: Engine, tmp_path: Path) -> None:
    planted = clone(small, tmp_path / "planted")
    replace(
        planted.folder,
        "scripts/image/finish/install-files",
        "install -m 755 ",
        "date +%s%N > /usr/local/planted\ninstall -m 755 ",
    )
    digest = planted.build()
    try:
        done = invoke("reproduce", CANDIDATE, "--json", cwd=planted.folder, env=planted.env)
        assert done.returncode == 1, done.stderr[-3000:]
        assert done.stderr.strip().endswith(f"{CANDIDATE} is not reproducible: 1 differences")
        verdict = json.loads(done.stdout)
        assert verdict["outcome"] == "different"
        assert verdict["commit"] == ""
        [difference] = [d for d in verdict["differences"] if d["layer"]]
        assert difference["path"] == "usr/local/planted"
        assert verdict["manifests"][0] == digest == engine.inspect(CANDIDATE).id
    finally:
        engine.untag(CANDIDATE)


@pytest.mark.slow
def test_reproduce_takes_the_commit_of_the_ledger(
    small: Small, original: str, engine: Engine, tmp_path: Path
) -> None:
    """This checkout builds other inputs by now, so the ledger says which commit had them."""
    other = clone(small, tmp_path / "other")
    assert other.build() == original
    git = ["git", "-C", str(other.folder), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    program = other.folder / "scripts" / "image" / "runtime" / "start.py"
    program.write_text(program.read_text() + "# Another line.\n")
    commit(other.folder)
    done = invoke("reproduce", CANDIDATE, cwd=other.folder, env=other.env)
    assert done.returncode == 2, done.stderr
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith(f"error: this checkout builds other inputs than those of {CANDIDATE}")
    )
    image = labels.read(engine.inspect(CANDIDATE).labels)
    inputs = image.inputs.removeprefix("sha256:")
    ledger.add(
        other.folder,
        ledger.Line(image=image.id, inputs=inputs, digest=original, commit=head, date="2026-11-28"),
    )
    done = invoke("reproduce", CANDIDATE, "--json", cwd=other.folder, env=other.env)
    assert done.returncode == 0, done.stderr[-3000:]
    verdict = json.loads(done.stdout)
    assert (verdict["commit"], verdict["outcome"]) == (head, "identical")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tag"), [("built", "latest"), ("narrow", "sm90")])
def test_the_torch_image_is_reproducible(
    name: str, tag: str, request: pytest.FixtureRequest, runner: Runner
) -> None:
    """From nothing, gigabytes of wheels and all: the whole image, and one for an architecture."""
    digest = request.getfixturevalue(name).digest
    runner.run(["docker", "buildx", "prune", "--force", "--all"])  # room on the disk
    done = invoke("reproduce", f"torch-cu130:{tag}", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    verdict = json.loads(done.stdout)
    assert verdict["outcome"] == "identical"
    assert verdict["manifests"] == [digest, digest]


def test_wheels_with_one_path_install_alike(
    built: Built, workspace: Workspace, runner: Runner, tmp_path: Path
) -> None:
    """Alone, uv leaves the files of the slower wheel: here of `first`, which has 1000 more."""
    paths = [f"shared/f{number}.py" for number in range(100)]
    contents: dict[str, dict[str, bytes]] = {
        name: {path: f"NAME = {name!r}\n".encode() for path in paths} for name in ("first", "last")
    }
    contents["first"] |= {f"only/f{number}.py": b"" for number in range(1000)}
    wheels = [make_wheel(tmp_path, name, "1", files) for name, files in contents.items()]
    lines = requirements_text(wheel.locked for wheel in wheels)
    (tmp_path / "wheels.txt").write_text(f"--no-index\n--find-links /run/wheels\n{lines}")
    tools = install_tools("tools-build", workspace, runner)
    mounts = {"build": ROOT / "scripts/image/build", "tools": tools, "wheels": tmp_path}
    install = "umask 022 && touch -d '1 minute ago' /run/step && /run/build/install-locked"
    done = docker(
        *("run", "--rm", "--user=root", "--network=none", "--entrypoint=sh"),
        *(f"--volume={path}:/run/{name}:ro" for name, path in mounts.items()),
        built.digest,
        "-c",
        f"{install} /run/wheels/wheels.txt /tmp/site && {install} /run/wheels/wheels.txt "
        "&& cat /tmp/site/shared/f*.py /opt/venv/lib/python3*/site-packages/shared/f*.py "
        "&& test ! -e /tmp/site/.lock -a ! -e /opt/venv/.lock",
    )
    assert done.returncode == 0, done.stdout
    assert re.findall("NAME = '(.*)'", done.stdout) == ["last"] * 200
