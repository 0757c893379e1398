"""The files of an image: each has a known origin, and none is dangerous or left over."""

from __future__ import annotations

import csv
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from tests.image import installed
from tests.image.tree import Entry

Tree = tuple[Entry, ...]

# Files that no package lists, because package scripts, the bootstrap or our own steps make them.
MADE = re.compile(
    r"""
    /etc/(?:.*-release|adjtime|apt/sources\.list|debian_version|environment|fstab|host\.conf)
    | /etc/(?:group|gshadow|passwd|shadow|shells|subgid|subuid|\.pwd\.lock|machine-id)
    | /etc/(?:ld\.so\.cache|localtime|timezone|networks|nsswitch\.conf|profile|issue(?:\.net)?|motd)
    | /etc/alternatives/.+
    | /etc/apt/(?:trusted\.gpg\.d|sources\.list\.d)/.+
    | /etc/(?:ca-certificates\.conf|default/.+|pam\.d/common-.+|security/opasswd|rc[0-6S]\.d/.+)
    | /etc/ssl/certs/(?:ca-certificates\.crt|[0-9a-f]{8}\.[0-9]|.+\.pem)
    | /etc/terminfo/README
    | /etc/uv/uv\.toml
    | /etc/(?:systemd|init\.d)/.+
    | /opt/venv/(?:pyvenv\.cfg|lib64|bin/(?:activate.*|deactivate\.bat|pydoc\.bat|python[0-9.]*))
    | /opt/venv/lib/python3\.[0-9]+/site-packages/_virtualenv\.(?:pth|py)
    | /opt/venv/lib/python3\.[0-9]+/site-packages/_torch_images(?:\.pth|/[a-z_]+\.py)
    | /opt/venv/lib/python3\.[0-9]+/site-packages/_torch_image_attention\.pth
    | /usr/local/lib/python3\.[0-9]+/dist-packages/torch-images\.pth
    | /root/\.(?:bashrc|profile)
    | /etc/(?:apt/apt\.conf\.d/docker-[a-z-]+|sudoers\.d/torch-images)
    | /usr/sbin/policy-rc\.d
    | /etc/(?:dpkg/origins/default|inputrc|python3/debian_config)
    | /usr/lib/ssl/cert\.pem
    | /etc/profile\.d/torch-images(?:-login)?\.sh
    | /etc/(?:hosts\.(?:allow|deny)|runit/runsvdir/default/ssh)
    | /etc/ssh/sshd_config(?:\.d/torch-images\.conf)?
    | /opt/cuda-compat/1[0-9]\.[0-9]/lib[A-Za-z0-9_.-]+\.so[0-9.]*
    | /usr/local/cuda(?:-1[0-9]\.[0-9]/.+)?   # links to what the wheels have
    | /usr/local/bin/(?:cuda-doctor|pod-start|torch-(?:bench|entrypoint|info))
    | /usr/local/lib/torch-images/(?:bench/)?[a-z_]+\.(?:json|py|sh)
    | /usr/local/lib/torch-images/(?:_torch_images|torch_images(?:/inside)?)/[a-z_]+\.py
    | /usr/local/lib/torch-images/attention/torch_image_attention/[a-z0-9_]+\.py
    | /usr/share/doc/cuda-compat-1[0-9]-[0-9]/copyright
    | /usr/share/info/dir
    | /usr/share/torch-images/(?:constraints\.txt|uv-project\.toml|lock/[a-z0-9.-]+\.json|cyclonedx\.json)
    | /var/(?:spool/mail|lib/python/python3\.[0-9]+_installed)
    | /(?:bin|sbin|lib(?:32|64|x32)?)   # the links of a merged /usr
    | /var/(?:lock|run)
    | /var/cache/(?:debconf/.+|ldconfig/aux-cache)
    | /var/lib/(?:apt/(?:extended_states|daily_lock|lists/lock)|pam/.+|shells\.state)
    | /var/lib/(?:dpkg|systemd|ucf)/.+
    | /var/log/(?:faillog|lastlog|btmp|wtmp)
    """,
    re.VERBOSE,
)
# Alternatives: links that update-alternatives makes (c++, cc, pager, rmt, libblas.so.3 ...).
LINKED = re.compile(
    r"/usr/(?:bin|sbin)/.+|/usr/lib/cpp|/usr/local/man|/usr/lib/[^/]+/lib[a-z]+\.so\.[0-9]+"
)


def merged(path: str) -> str:
    """A path as it is on a system with merged /usr. dpkg still lists the old one, as /bin/sh."""
    return re.sub(r"^/(bin|sbin|lib|lib32|lib64|libx32)/", r"/usr/\1/", path)


def recorded(host: Host, site: str) -> Iterator[str]:
    """The paths of the files that the RECORDs of installed wheels name."""
    text = host.check_output("cat %s/*.dist-info/RECORD", site)
    return (posixpath.normpath(f"{site}/{row[0]}") for row in csv.reader(text.splitlines()))


def source_of(path: str) -> str:
    """The Python file that a bytecode file was compiled from; any other path unchanged."""
    return re.sub(r"__pycache__/([^/]+)\.cpython-3[0-9]+\.pyc$", r"\1.py", path)


def test_torch_has_its_own_libraries(host: Host) -> None:
    """A wheel of another name can replace one: see scripts/image/runtime/libraries.py."""
    assert host.check_output("python3 -sES /usr/local/lib/torch-images/libraries.py") == ""


def test_every_file_is_accounted_for(host: Host, tree: Tree, expected: dict[str, Any]) -> None:
    known = set(map(merged, host.check_output("cat /var/lib/dpkg/info/*.list").splitlines()))
    known |= set(recorded(host, expected["site_packages"]))
    known |= set(expected["own_files"])
    folders = [facts["folder"] for facts in expected["unpacked"].values()]
    for folder in folders:
        known |= set(recorded(host, folder))
    stray = [
        entry.path
        for entry in tree
        if entry.kind != "d"
        and not (entry.kind == "l" and LINKED.fullmatch(entry.path))
        and not (entry.kind == "l" and entry.path.startswith(tuple(f"{f}/" for f in folders)))
        and entry.path not in known
        and (source := source_of(entry.path)) not in known
        and not MADE.fullmatch(source)
    ]
    assert not stray, f"{len(stray)} files belong to no package, the first: {stray[:10]}"


# Files that their publisher changed after he wrote the wheel's RECORD: SHA-256, bytes and path of
# what is in the wheels of pynvvideocodec 2.0.4, as their hashes in locks/ pin them.
_NV = "PyNvVideoCodec/PyNvVideoCodec"
CHANGED = (
    f"0cf717968e62167fc7ea57e9d90b0d2e69233a941930fab69607ae6646fdf851 2439136 "
    f"{_NV}_121.cpython-311-x86_64-linux-gnu.so",
    f"a9ffef1a47ebe449375c7bef523c27eda9532c00868714672bc6d683940eff95 2455520 "
    f"{_NV}_130.cpython-311-x86_64-linux-gnu.so",
    f"b0e33484eec4df24af2c9068c3d7ca4ad92d4d98535d3e06b688f27eaa9a041b 2443232 "
    f"{_NV}_121.cpython-313-x86_64-linux-gnu.so",
    f"9e5cf879dd4540b4a8e5107598334b0096d551d7911d235cd169a553b1cf636b 2459616 "
    f"{_NV}_130.cpython-313-x86_64-linux-gnu.so",
)


@pytest.fixture(scope="module")
def problems(host: Host, expected: dict[str, Any]) -> dict[str, list[str]]:
    """The problems with the content of files, by kind. All files are read once for all checks."""
    folders = [facts["folder"] for facts in expected["unpacked"].values()]
    question = {
        "sites": [expected["site_packages"], *folders],
        "changed": list(CHANGED),
        "unchanged": expected["unchanged"],
        # Only locked packages: those of a base that is an image are its publisher's.
        "packages": sorted(expected["debs"]),
        "bytecode": [
            *("/opt/venv", "/usr/lib/python3", f"/usr/lib/python{expected['python']}"),
            "/usr/local/lib/torch-images",
        ],
    }
    if os.environ.get("TORCH_IMAGES_EMULATED"):
        question |= {"packages": [], "bytecode": []}
    program = Path(installed.__file__).read_text(encoding="utf-8")
    run = "/usr/bin/python3 -I -B -c %s %s"
    done = host.run(run, program, json.dumps(question))
    if done.rc:
        pytest.fail(f"the files could not be read: {done.stderr[-500:]}", pytrace=False)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_wheels_files_are_what_their_records_say(problems: dict[str, list[str]]) -> None:
    """Compare sizes and SHA-256. Where code was left out of a file, RECORD has what remains."""
    assert not problems["wheels"], shown(problems["wheels"])


# The packages are those of every image of this base, and the bytecode was made without an emulator.
@pytest.mark.native("it takes minutes to read the files")
def test_debian_files_are_what_dpkg_says(problems: dict[str, list[str]]) -> None:
    """Compare MD5, the only digest that dpkg keeps.

    This finds damage. The lock's SHA-256 was checked when the packages were fetched.
    """
    ours = r"/(etc/bash\.bashrc|usr/lib/python3\.\d+/EXTERNALLY-MANAGED) has other content"
    assert not (found := [p for p in problems["debs"] if not re.fullmatch(ours, p)]), shown(found)


@pytest.mark.native("it takes minutes to read the files")
def test_bytecode_is_of_the_sources(problems: dict[str, list[str]]) -> None:
    assert not problems["bytecode"], shown(problems["bytecode"])


def shown(problems: list[str]) -> str:
    return f"{len(problems)} files, the first: {'; '.join(problems[:5])}"


def test_nothing_is_world_writable(tree: Tree) -> None:
    sticky = 0o1000
    found = [e.path for e in tree if e.kind != "l" and e.mode & 0o002 and not e.mode & sticky]
    assert not found


def test_everything_is_readable_by_all(tree: Tree) -> None:
    """Programs must also work for users other than root (`docker run --user`)."""
    found = [
        e.path
        for e in tree
        if e.path.startswith(("/opt/", "/usr/")) and e.kind in "fd" and not e.mode & 0o004
    ]
    # Debian ships these closed on purpose.
    assert set(found) <= {"/usr/lib/ssl/private"}


def test_no_program_takes_the_rights_of_another_user(tree: Tree) -> None:
    """A fault in su, mount, passwd or such would make any user id of a container root."""
    assert not [e.path for e in tree if e.kind != "d" and e.mode & 0o6000]


def test_owners_fit_user_namespaces(tree: Tree) -> None:
    """A host that maps 65536 ids cannot unpack files of others ("ID 78971 cannot be mapped")."""
    assert not [e.path for e in tree if e.uid >= 65536 or e.gid >= 65536]


def test_environment_belongs_to_root(tree: Tree) -> None:
    assert not [e.path for e in tree if e.path.startswith("/opt/") and (e.uid, e.gid) != (0, 0)]


def test_no_caches_or_logs(tree: Tree) -> None:
    places = ("/var/cache/apt/", "/var/lib/apt/lists/", "/var/log/", "/root/.", "/run/", "/tmp/")
    kept = {"/root/.bashrc", "/root/.profile"}
    found = [e.path for e in tree if e.kind == "f" and e.path.startswith(places)]
    assert set(found) <= kept


def test_standard_library_has_bytecode(host: Host, expected: dict[str, Any]) -> None:
    """Users who cannot write the folder would otherwise compile it again at each start."""
    folder = f"/usr/lib/python{expected['python']}"
    sources = host.check_output(f"cd {folder} && ls *.py").split()
    cached = host.check_output(f"cd {folder}/__pycache__ && ls *.pyc").split()
    assert {n.removesuffix(".py") for n in sources} == {n.partition(".")[0] for n in cached}


def test_no_documentation(tree: Tree) -> None:
    """The folders are those of scripts/image/build/documentation.dpkg.

    They are repeated here on purpose: a check must not read its expectation from what it checks.
    """
    docs = ("/usr/share/doc/", "/usr/share/info/", "/usr/share/locale/", "/usr/share/man/")
    files = [e.path for e in tree if e.kind == "f" and e.path.startswith(docs)]
    assert not [f for f in files if not f.endswith("/copyright") and f != "/usr/share/info/dir"]


def test_scanners_find_no_list_of_packages(tree: Tree) -> None:
    """They would take it for what is installed: one of ours is wrong in each derived image.

    By these names Syft and Trivy find lists. A wheel may say what was linked into its libraries.
    """
    names = re.compile(r".*/(?:bom|sbom|[^/]*\.(?:bom|sbom|cdx|spdx|syft)(?:\.[^/]*)?)")
    found = [e.path for e in tree if e.kind == "f" and names.fullmatch(e.path)]
    assert not [path for path in found if ".dist-info/sboms/" not in path]


def test_file_times_are_fixed(tree: Tree) -> None:
    """All files have one fixed time, so that layers are reproducible.

    The engine makes the rest, and the start the folder where torch.compile keeps code.
    """
    made = {"/", "/etc", "/proc", "/dev", "/sys", "/tmp", "/tmp/torchinductor_root"}
    assert not [e.path for e in tree if e.time != expected_time() and e.path not in made]


def expected_time() -> float:
    return 315532800.0  # 1980-01-01, see torch_images/oci/layout.py


def test_trusts_only_debians_certificates(host: Host) -> None:
    """The build uses the host's CA bundle, which must not stay in the image."""
    shipped = host.check_output("cat $(find /usr/share/ca-certificates -name '*.crt')")
    trusted = host.check_output("cat /etc/ssl/certs/ca-certificates.crt")
    marker = "-----BEGIN CERTIFICATE-----"
    assert shipped.count(marker) == trusted.count(marker) > 100
    assert host.check_output("find /usr/local/share /run/secrets -type f 2>/dev/null || true") == ""


def test_no_state_of_the_build_host(host: Host, tree: Tree) -> None:
    paths = {e.path for e in tree}
    assert not paths & {"/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-"}
    assert host.check_output("cat /etc/machine-id 2>/dev/null || true") in ("", "uninitialized")
