"""Programs of another processor: what binfmt_misc says, and what scripts/setup-engine does about it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import docker.errors
import pytest

import docker
from tests.unit.fakes import FakeRunner
from torch_images.errors import EngineError
from torch_images.host import setup
from torch_images.host.connection import Endpoint
from torch_images.host.emulation import check_platform, emulated
from torch_images.host.engine import Engine
from torch_images.platforms import AMD64, ARM64, Platform

# The entries of Debian's QEMU 10.0, as Linux 6.18 shows them.
ARM = """enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
X86 = """enabled
interpreter /usr/libexec/qemu-binfmt/x86_64-binfmt-P
flags: F
offset 0
magic 7f454c4602010100000000000000000002003e00
mask fffffffffffefe00fffffffffffffffffeffffff
"""
COMMENT = "# by QEMU\n"
DESCRIPTION = ":qemu-aarch64:M::\\x7f:\\xff:/usr/libexec/qemu-binfmt/aarch64-binfmt-P:OPF\n"


def changed(old: str, new: str) -> str:
    assert ARM.count(old) == 1
    return ARM.replace(old, new)


# An entry, and whether containers have an emulator for arm64 by it.
ENTRIES = {
    "QEMU's": (ARM, True),
    "only flag F": (changed("POF", "F"), True),
    "other processor": (X86, False),
    "32 bits": (changed("7f454c4602", "7f454c4601"), False),
    "not held open": (changed("POF", "PO"), False),
    "F in the name alone": (changed("POF", "").replace("aarch64-binfmt-P", "flags: F"), False),
    "disabled": (changed("enabled", "disabled"), False),
    "by extension": ("enabled\ninterpreter /bin/x\nflags: F\nextension .arm\n", False),
}


@pytest.fixture
def binfmt(tmp_path: Path) -> Path:
    """A mounted binfmt_misc without entries."""
    folder = tmp_path / "binfmt_misc"
    folder.mkdir()
    (folder / "status").write_text("enabled\n")
    (folder / "register").touch()
    return folder


@pytest.mark.parametrize("name", ENTRIES)
def test_emulated_reads_an_entry(binfmt: Path, name: str) -> None:
    text, expected = ENTRIES[name]
    (binfmt / "some name").write_text(text)
    assert emulated(ARM64, binfmt) is expected


def test_only_a_foreign_platform_needs_an_emulator(binfmt: Path) -> None:
    check_platform(ARM64, binfmt, machine=ARM64)
    with pytest.raises(EngineError, match="linux/arm64; run scripts/setup-engine"):
        check_platform(ARM64, binfmt, machine=AMD64)
    (binfmt / "qemu-aarch64").write_text(ARM)
    check_platform(ARM64, binfmt, machine=AMD64)
    with pytest.raises(EngineError, match="linux/amd64"):
        check_platform(AMD64, binfmt, machine=ARM64)


# --- scripts/setup-engine -------------------------------------------------------------------------

TOOLS = ("bash", "cat", "df", "env", "grep", "head", "mktemp", "rm", "sed", "sh", "tail")
# Stand-ins for all that the script would start. Each writes down what it was asked for.
STUB = '#!/bin/sh\necho "${0##*/} $*" >>"$FOLDER/log"\n'
STUBS = {
    "apt-get": '[ "$2" != install ] || [ -e "$FOLDER/no" ] || echo "$LINE" >"$FOLDER/d/qemu-aarch64.conf"',
    "arch-test": "",
    "curl": "",
    "docker": "echo 26.1.5",
    "id": "echo 0",
    "install": "cat >/dev/null",
    "mmdebstrap": "",
    "mount": 'mkdir "$4" && echo enabled >"$4/status" && : >"$4/register"',
    "tee": 'cat >>"$FOLDER/log"; cp "$FOLDER/entry" "$FOLDER/binfmt_misc/qemu-aarch64"',
    "uname": '[ "$1" = -s ] && echo Linux || echo x86_64',
}
SYSTEMS = {
    "bookworm": 'ID=debian\nNAME=Debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n',
    "trixie": 'ID=debian\nNAME=Debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n',
    "noble": 'ID=ubuntu\nNAME=Ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n',
}


class Machine:
    """Where setup-engine runs: a folder with stand-ins for all programs, and a binfmt_misc."""

    def __init__(self, folder: Path, root: Path, binfmt: Path) -> None:
        self.folder, self.binfmt = folder, binfmt
        self.log, self.bin, self.described = folder / "log", folder / "bin", folder / "d"
        self.bin.mkdir()
        self.described.mkdir()
        (folder / "entry").write_text(ARM)  # what the kernel makes of a registration
        for name in (*TOOLS, "cp", "mkdir"):
            path = shutil.which(name)
            assert path
            (self.bin / name).symlink_to(path)
        for name, text in STUBS.items():
            self.stub(name, text)
        self.system("bookworm")
        text = (root / "scripts/setup-engine").read_text()
        self.keyring = folder / "keyring"
        self.keyring.touch()
        for old, new in (
            ("/etc/os-release", "os-release"),
            ("/usr/lib/binfmt.d", "d"),
            ("/usr/share/keyrings/debian-archive-keyring.gpg", "keyring"),
        ):
            assert old in text
            text = text.replace(old, str(folder / new))
        # No program of the system but those above.
        tail = ":/usr/local/sbin:/usr/sbin:/sbin"
        assert tail in text
        (folder / "setup-engine").write_text(text.replace(tail, ""))

    def stub(self, name: str, text: str) -> None:
        quiet = name in {"arch-test", "curl", "docker", "id", "mmdebstrap", "uname"}
        (self.bin / name).write_text(("#!/bin/sh\n" if quiet else STUB) + text + "\n")
        (self.bin / name).chmod(0o755)

    def system(self, name: str) -> None:
        (self.folder / "os-release").write_text(SYSTEMS[name])

    def __call__(self, *words: str) -> tuple[int, list[str]]:
        """Exit code, and the lines that are shown."""
        done = subprocess.run(
            [self.bin / "bash", self.folder / "setup-engine", *words],
            env={
                "PATH": str(self.bin),
                "FOLDER": str(self.folder),
                "LINE": COMMENT + DESCRIPTION.rstrip(),
                "TORCH_IMAGES_BINFMT": str(self.binfmt),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stdout
        return done.returncode, done.stderr.splitlines()

    def did(self) -> list[str]:
        """What the stand-ins were asked for."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path, root: Path, binfmt: Path) -> Machine:
    """One of an engine and mmdebstrap, without an emulator."""
    return Machine(tmp_path, root, binfmt)


ARM_WORDS = ("--platform", "linux/arm64")
REGISTER = "register QEMU's emulator of aarch64"
READY = [
    "setup: Docker Engine 26.1.5 is ready",
    "setup: programs of linux/arm64 run here, through QEMU",
]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_script_reads_an_entry_as_python_does(machine: Machine, name: str) -> None:
    text, expected = ENTRIES[name]
    (machine.binfmt / "some name").write_text(text)
    code, lines = machine("--dry-run", *ARM_WORDS)
    assert code == 0
    assert (not lines) is expected
    assert expected or REGISTER in lines[-1]


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        ("bookworm", "qemu-user qemu-user-binfmt from Debian trixie"),
        ("trixie", "qemu-user qemu-user-binfmt from Debian"),
        ("noble", "qemu-user-static from Ubuntu"),
    ],
)
def test_a_dry_run_prints_the_plan(machine: Machine, system: str, packages: str) -> None:
    machine.system(system)
    code, lines = machine("--dry-run", *ARM_WORDS)
    assert code == 0
    assert [line for line in lines if packages in line]
    assert REGISTER in lines[-1]
    assert not machine.did()


def test_setup_engine_with_nothing_to_do(machine: Machine) -> None:
    assert machine("--platfrom")[0] == 3
    assert machine() == (0, [])
    assert machine("--platform", "linux/amd64") == (0, [])
    machine.stub("uname", '[ "$1" = -s ] && echo Linux || echo aarch64')
    assert machine(*ARM_WORDS) == (0, [])
    _, lines = machine("--dry-run", "--platform", "linux/amd64")
    assert "QEMU's emulator of x86_64" in lines[-1]
    (machine.binfmt / "qemu-x86_64").write_text(X86)
    assert machine("--platform", "linux/amd64") == (0, [])
    assert not machine.did()


def test_setup_engine_runs_every_step(machine: Machine) -> None:
    machine.system("trixie")
    shutil.rmtree(machine.binfmt)
    code, lines = machine("--yes", *ARM_WORDS)
    assert (code, lines[-2:]) == (0, READY)
    did = machine.did()
    assert did == [
        "apt-get -qq update",
        did[1],
        f"mount -t binfmt_misc binfmt_misc {machine.binfmt}",
        f"tee {machine.binfmt}/register",
        DESCRIPTION.rstrip(),
    ]
    assert did[1].startswith("apt-get -qq install --no-install-recommends -y ")
    assert did[1].endswith("qemu-user qemu-user-binfmt")
    assert machine("--yes", *ARM_WORDS) == (0, [])
    assert machine.did() == did


def test_an_entry_of_that_name_is_kept(machine: Machine) -> None:
    entry = machine.binfmt / "qemu-aarch64"
    entry.write_text(changed("POF", "PO"))
    code, [line] = machine("--yes", *ARM_WORDS)
    assert (code, entry.read_text()) == (3, changed("POF", "PO"))
    assert f"{entry} is disabled or has no flag F" in line
    assert not machine.did()


def test_binfmt_misc_that_is_off(machine: Machine) -> None:
    (machine.binfmt / "status").write_text("disabled\n")
    code, [line] = machine("--yes", *ARM_WORDS)
    assert code == 3
    assert "binfmt_misc is disabled" in line
    assert not machine.did()


def test_debians_keys_are_installed_where_they_are_missing(machine: Machine) -> None:
    """Ubuntu has mmdebstrap without them, and apt refused Debian's signatures."""
    machine.keyring.unlink()
    assert machine("--yes")[0] == 0
    install = next(line for line in machine.did() if " install " in line)
    assert install.endswith(" mmdebstrap uidmap debian-archive-keyring")


def test_without_root(machine: Machine) -> None:
    machine.stub("id", "echo 1000")
    machine.stub("newuidmap", "")
    assert machine("--yes") == (0, [])
    code, [line] = machine("--yes", *ARM_WORDS)
    assert code == 3
    assert "this needs root" in line
    machine.stub("sudo", "exit 1")
    code, [line] = machine("--yes", *ARM_WORDS)
    assert code == 3
    assert "no terminal" in line


@pytest.mark.parametrize("docker", [True, False])
def test_an_engine_and_an_emulator(machine: Machine, docker: bool) -> None:
    """Both may come from trixie, or the engine from Docker's own repository."""
    says = 'if [ "$1" = context ]; then echo default; exit; fi'
    says += '; [ -e "$FOLDER/d/qemu-aarch64.conf" ] && echo 26.1.5'  # once apt-get was there
    machine.stub("docker", says)
    machine.stub("curl", f"exit {0 if docker else 22}")
    machine.stub(
        "apt-get", f"{STUBS['apt-get']}\n[ $1 != indextargets ] || echo http://mirror/debian"
    )
    code, lines = machine("--yes", *ARM_WORDS)
    assert (code, lines[-2:]) == (0, READY)
    names = "qemu-user qemu-user-binfmt"
    names = names if docker else f"docker.io docker-cli docker-buildx {names}"
    assert lines[1].startswith(f"setup:   install {names} from Debian trixie (only")
    assert lines[2].endswith(" from Docker's package repository") is docker
    put = "install -D -m 644 /dev/stdin /etc/apt/sources.list.d/torch-images-"
    assert f"{put}trixie.sources" in machine.did()
    assert (f"{put}docker.sources" in machine.did()) is docker


class Setup(FakeRunner):
    """Stands in for the script: it registers the emulator, or ends with an exit code."""

    def __init__(self, done: dict[str, bool], code: int = 0) -> None:
        super().__init__()
        self.done, self.code = done, code

    def interact(self, command: Any, **options: Any) -> int:
        self.commands.append(list(command))
        if not self.code:
            self.done["arm"] = True
        return self.code


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What this machine, an amd64 with an engine, has."""
    has = {"arm": False, "arch-test": True, "engine": True}
    resolved = Endpoint(host="unix:///found")

    def connect(_: object, endpoint: object = None) -> Engine:
        has["named"] = endpoint is resolved  # else the CLI is asked a second time
        if not has["engine"]:
            raise EngineError("no engine")
        return Engine(cast("docker.DockerClient", None))

    def check(platform: Platform) -> None:
        if not has["arm"]:
            raise EngineError(f"no {platform}")

    monkeypatch.setattr(setup, "native", lambda: AMD64)
    monkeypatch.setattr(setup, "current", lambda _: resolved)
    monkeypatch.setattr(setup, "connect", connect)
    monkeypatch.setattr(setup, "check_platform", check)
    monkeypatch.setattr(setup, "emulated", lambda _: has["arm"])
    monkeypatch.setattr(
        shutil, "which", lambda tool: tool if tool != "arch-test" or has[tool] else None
    )
    return has


@pytest.mark.parametrize(("allowed", "words"), [("yes", ["--yes"]), ("ask", [])])
def test_a_foreign_platform_is_set_up(
    state: dict[str, bool], tmp_path: Path, allowed: str, words: list[str]
) -> None:
    run = Setup(state)
    setup.ready_engine(tmp_path, run, allowed=allowed, platforms=[AMD64])
    assert not run.commands
    assert state["named"]
    setup.ready_engine(tmp_path, run, allowed=allowed, platforms=[AMD64, ARM64])
    script = str(tmp_path / "scripts" / "setup-engine")
    assert run.commands == [[script, *words, "--platform", "linux/arm64"]]
    setup.ready_engine(tmp_path, run, allowed=allowed, platforms=[ARM64], bootstraps=True)
    assert len(run.commands) == 1
    state["arch-test"] = False
    setup.ready_engine(tmp_path, run, allowed=allowed, platforms=[ARM64])
    setup.ready_engine(tmp_path, run, allowed=allowed, bootstraps=True)
    setup.ready_engine(tmp_path, run, allowed=allowed, platforms=[AMD64], bootstraps=True)
    assert len(run.commands) == 1
    setup.ready_engine(tmp_path, run, allowed=allowed, platforms=[ARM64], bootstraps=True)
    assert len(run.commands) == 2
    assert setup.can_bootstrap([AMD64])
    assert not setup.can_bootstrap([AMD64, ARM64])


def test_ready_engine_sets_up_nothing_unless_allowed(
    state: dict[str, bool], tmp_path: Path
) -> None:
    run = Setup(state)
    setup.ready_engine(tmp_path, run, allowed="", platforms=[AMD64])
    with pytest.raises(EngineError, match=r"^no linux/arm64$"):
        setup.ready_engine(tmp_path, run, allowed="", platforms=[ARM64])
    state["arm"] = True
    setup.ready_engine(tmp_path, run, allowed="", platforms=[ARM64])
    state["engine"] = False
    with pytest.raises(EngineError, match=r"^no engine$"):
        setup.ready_engine(tmp_path, run, allowed="", platforms=[ARM64])
    assert not run.commands
