"""Packages, accounts and programs of the image, and the start of its containers."""

from __future__ import annotations

import re
from typing import Any

from testinfra.host import Host

Facts = dict[str, Any]


def test_package_is_installed(package: str, host: Host) -> None:
    assert host.package(package).is_installed


def test_packages_are_configured(host: Host) -> None:
    assert host.check_output("dpkg --audit") == ""


def test_distribution(host: Host, expected: Facts) -> None:
    assert f"{host.system_info.distribution} {host.system_info.codename}" == expected["system"]


def test_no_other_login(host: Host) -> None:
    """Nobody but root has a shell, and no account has a password."""
    accounts = [line.split(":") for line in host.file("/etc/passwd").content_string.splitlines()]
    shells = {
        name for name, *_, shell in accounts if not shell.endswith(("nologin", "false", "sync"))
    }
    assert shells == {"root"}
    passwords = [
        line.split(":")[1] for line in host.file("/etc/shadow").content_string.splitlines()
    ]
    assert set(passwords) <= {"*", "!", "!*"}


def test_only_root_has_uid_0(host: Host) -> None:
    lines = host.file("/etc/passwd").content_string.splitlines()
    assert [line.split(":")[0] for line in lines if line.split(":")[2] == "0"] == ["root"]


def test_python_is_the_environments(host: Host, expected: Facts) -> None:
    for name in ("python", "pip"):
        assert host.check_output("command -v %s", name) == f"/opt/venv/bin/{name}"
    assert host.check_output("python --version").startswith(f"Python {expected['python']}.")


def test_compiler_works(host: Host) -> None:
    """torch.compile and Triton compile C and C++ at run time, with Python's headers."""
    source = "#include <Python.h>\nint main() { return PY_MAJOR_VERSION - 3; }"
    include = host.check_output(
        "python -c 'import sysconfig; print(sysconfig.get_path(\"include\"))'"
    )
    done = host.run(
        "printf %s | g++ -I%s -x c++ - -o /tmp/a && /tmp/a && rm /tmp/a", source, include
    )
    assert done.rc == 0, done.stderr


def test_entrypoint_runs_a_command(host: Host) -> None:
    done = host.run("/usr/local/bin/torch-entrypoint sh -c 'exit 7'")
    assert done.rc == 7


def test_init_is_tini(host: Host) -> None:
    """PID 1 reaps children and passes signals on."""
    assert re.match(r"tini version", host.check_output("tini --version"))
    assert host.file("/proc/1/comm").content_string.strip() == "tini"


def test_an_id_without_a_name_has_name_and_home(host: Host) -> None:
    """torch.compile needs both, also under `docker exec`, which does not run the entrypoint."""
    as_other = "setpriv --reuid=12345 --regid=0 --clear-groups env --unset=USER --unset=LOGNAME"
    code = "import getpass, os; print(getpass.getuser(), os.environ['HOME'])"
    done = host.run(f'{as_other} HOME=/ python -c "{code}"')
    assert (done.rc, done.stdout.strip()) == (0, "user12345 /tmp/torch-images-12345"), done.stderr


def test_any_user_can_write_where_containers_start(host: Host, expected: Facts) -> None:
    """`COPY . .` and `docker run --user` work there, and a named volume takes over the mode."""
    folder = expected["folder"]
    own = any(path.startswith(f"{folder}/") for path in expected["own_files"])
    assert own or host.file(folder).mode == 0o1777


def test_apt_has_the_habits_of_debians_images(host: Host) -> None:
    """What it downloads and what it starts is no part of a derived image."""
    told = host.check_output("apt-config dump")
    settings = dict(line.removesuffix(";").split(" ", 1) for line in told.splitlines())
    assert settings["Acquire::GzipIndexes"] == '"true"'
    assert settings["Acquire::Languages::"] == '"none"'
    assert told.count("rm -f /var/cache/apt/archives/*.deb") == 2
    assert host.run("/usr/sbin/policy-rc.d ssh start").rc == 101


def test_sudo_finds_the_images_programs(host: Host) -> None:
    """No image has sudo; whoever adds it has the same pip."""
    file = host.file("/etc/sudoers.d/torch-images")
    assert (file.mode, file.user, file.group) == (0o440, "root", "root")
    path, kept = file.content_string.splitlines()
    assert path.startswith('Defaults secure_path="/opt/venv/bin:')
    assert {"PIP_CONSTRAINT", "UV_CONSTRAINT", "TORCH_IMAGE_PROFILE"} <= {
        *kept.split('"')[1].split()
    }
    assert "BASH_ENV" not in kept


def test_root_has_its_own_home(host: Host) -> None:
    assert host.check_output("python -c 'import os; print(os.environ[\"HOME\"])'") == "/root"
