"""How a choice is made to hold: the loader's cache where it can be written, else the environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import effect
import pytest
from decision import Choice, Host, Library

OURS, HOSTS = "/opt/cuda-compat/13.0", "/usr/lib/x86_64-linux-gnu"
HOST = Host(driver="570.86.15", library=f"{HOSTS}/libcuda.so.1", nodes=True)
TAKE = Choice("compat", works=True, reason="", folder=OURS)
LEAVE = Choice("host", works=True, reason="")
LIBRARY = Library("/t", "", None)


class Loader:
    """The loader's cache: what each write of it saw in the configuration."""

    def __init__(self, conf: Path, answer: bool | Exception = True) -> None:
        self.conf, self.answer = conf, answer
        self.seen: list[str] = []

    def __call__(self) -> bool:
        self.seen.append(self.conf.read_text() if self.conf.exists() else "")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


FAILURES = (
    False,
    OSError("no such program"),
    subprocess.TimeoutExpired("ldconfig", 10),
)


def conf_of(root: Path, earlier: str = "") -> Path:
    conf = root / effect.CONF
    conf.parent.mkdir(parents=True)
    if earlier:
        conf.write_text(f"{earlier}\n")
    return conf


def applied(
    choice: Choice, root: Path, loader: Callable[[], bool], **environ: str
) -> tuple[str, dict[str, str]]:
    return effect.apply(choice, HOST, root, environ, "/opt/cuda-compat", ldconfig=loader)


@pytest.mark.parametrize("earlier", ["", OURS, "/opt/cuda-compat/12.8"])
def test_root_writes_the_cache_whatever_was_there(tmp_path: Path, earlier: str) -> None:
    loader = Loader(conf_of(tmp_path, earlier))
    assert applied(TAKE, tmp_path, loader) == (effect.CACHE, {})
    assert loader.seen == [f"{OURS}\n"]
    assert loader.conf.read_text() == f"{OURS}\n"


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("earlier", ["", OURS, "/opt/cuda-compat/12.8"])
def test_a_cache_that_cannot_be_written_leaves_the_environment(
    tmp_path: Path, earlier: str, answer: bool | Exception
) -> None:
    """No configuration stays that the cache does not have: the next `ldconfig` would read it."""
    loader = Loader(conf_of(tmp_path, earlier), answer)
    wanted = {"LD_LIBRARY_PATH": OURS, "TRITON_LIBCUDA_PATH": OURS}
    assert applied(TAKE, tmp_path, loader) == (effect.ENVIRONMENT, wanted)
    assert not loader.conf.exists()


def test_who_may_not_write_uses_what_root_chose_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError

    loader = Loader(conf_of(tmp_path, OURS))
    monkeypatch.setattr(Path, "write_text", refuse)
    assert applied(TAKE, tmp_path, loader) == (effect.CACHE, {})
    other = Choice("compat", works=True, reason="", folder="/opt/cuda-compat/12.8")
    how, changes = applied(other, tmp_path, loader, LD_LIBRARY_PATH="/mine")
    assert how == effect.ENVIRONMENT
    assert changes["LD_LIBRARY_PATH"] == "/opt/cuda-compat/12.8:/mine"
    assert changes["TRITON_LIBCUDA_PATH"] == "/opt/cuda-compat/12.8"
    assert loader.seen == []


def test_without_a_folder_for_configuration(tmp_path: Path) -> None:
    """An image without the loader's own: nothing is made there."""
    loader = Loader(tmp_path / effect.CONF)
    assert applied(TAKE, tmp_path, loader)[0] == effect.ENVIRONMENT
    assert loader.seen == []
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Of another image's layer, say, to a file that is not there. A pipe would be waited for."""
    conf = conf_of(tmp_path)
    conf.symlink_to(tmp_path / "elsewhere")
    loader = Loader(conf)
    assert applied(TAKE, tmp_path, loader)[0] == effect.ENVIRONMENT
    assert loader.seen == []
    assert not (tmp_path / "elsewhere").exists()


def test_root_takes_an_earlier_choice_back(tmp_path: Path) -> None:
    loader = Loader(conf_of(tmp_path, OURS))
    assert applied(LEAVE, tmp_path, loader) == (effect.NOTHING, {})
    assert loader.seen == [""]
    assert applied(LEAVE, tmp_path, loader) == (effect.NOTHING, {})
    assert loader.seen == [""]  # nothing was there, so the cache stays


@pytest.mark.parametrize("answer", FAILURES)
def test_an_earlier_choice_that_stays_in_the_cache_is_outdone(
    tmp_path: Path, answer: bool | Exception
) -> None:
    loader = Loader(conf_of(tmp_path, OURS), answer)
    wanted = {"LD_LIBRARY_PATH": HOSTS, "TRITON_LIBCUDA_PATH": HOSTS}
    assert applied(LEAVE, tmp_path, loader) == (effect.ENVIRONMENT, wanted)


def test_an_earlier_choice_that_another_user_made_is_outdone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    loader = Loader(conf_of(tmp_path, OURS))
    monkeypatch.setattr(Path, "unlink", refuse)
    how, changes = applied(LEAVE, tmp_path, loader, LD_LIBRARY_PATH="/mine:/yours")
    assert (how, loader.seen) == (effect.ENVIRONMENT, [])
    assert changes == {"LD_LIBRARY_PATH": f"{HOSTS}:/mine:/yours", "TRITON_LIBCUDA_PATH": HOSTS}
    no_library = Host(driver="570.86.15", nodes=True)
    found = effect.apply(LEAVE, no_library, tmp_path, {}, "/opt/cuda-compat", ldconfig=loader)
    assert found == (effect.NOTHING, {})


def test_an_earlier_choice_leaves_the_environment(tmp_path: Path) -> None:
    """Ours only: a folder whose name merely starts alike is someone else's."""
    loader = Loader(conf_of(tmp_path))
    how, changes = applied(
        LEAVE,
        tmp_path,
        loader,
        LD_LIBRARY_PATH="/a:/opt/cuda-compat/12.8:/opt/cuda-compat-mine:/b",
        TRITON_LIBCUDA_PATH="/opt/cuda-compat/12.8",
    )
    assert how == effect.NOTHING
    assert changes == {
        "LD_LIBRARY_PATH": "/a:/opt/cuda-compat-mine:/b",
        "TRITON_LIBCUDA_PATH": "",
    }
    kept = {"LD_LIBRARY_PATH": "/a:/b", "TRITON_LIBCUDA_PATH": "/c"}
    assert applied(LEAVE, tmp_path, loader, **kept) == (effect.NOTHING, {})


def test_a_new_choice_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    loader = Loader(conf_of(tmp_path), answer=False)
    environ = {
        "LD_LIBRARY_PATH": "/opt/cuda-compat/12.8:/mine",
        "TRITON_LIBCUDA_PATH": "/opt/cuda-compat/12.8",
    }
    how, changes = applied(TAKE, tmp_path, loader, **environ)
    assert how == effect.ENVIRONMENT
    assert changes == {"LD_LIBRARY_PATH": f"{OURS}:/mine", "TRITON_LIBCUDA_PATH": OURS}


def test_a_libcuda_that_the_environment_names_is_outdone(tmp_path: Path) -> None:
    """LD_LIBRARY_PATH goes before the cache, so the choice has to be there, too."""
    loader = Loader(conf_of(tmp_path))
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes/libcuda.so.1").touch()
    (tmp_path / "other").mkdir()
    path = f"{tmp_path}/other::{tmp_path}/kubernetes"
    how, changes = applied(TAKE, tmp_path, loader, LD_LIBRARY_PATH=path)
    assert (how, changes) == (effect.CACHE, {"LD_LIBRARY_PATH": f"{OURS}:{path}"})
    harmless = f"{tmp_path}/other:"
    assert applied(TAKE, tmp_path, loader, LD_LIBRARY_PATH=harmless) == (effect.CACHE, {})


def test_an_empty_part_of_the_path_is_not_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(conf_of(tmp_path))
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.chdir(tmp_path)
    assert applied(TAKE, tmp_path, loader, LD_LIBRARY_PATH="/none:") == (effect.CACHE, {})


def test_the_toolkits_choice_is_undone_in_the_cache(tmp_path: Path) -> None:
    loader = Loader(conf_of(tmp_path))
    undo = Choice("host", works=True, reason="", folder=HOSTS)
    host = Host(library=f"{HOSTS}/libcuda.so.1", toolkit=LIBRARY)
    found = effect.apply(undo, host, tmp_path, {}, "/opt/cuda-compat", ldconfig=loader)
    assert found == (effect.CACHE, {})
    assert loader.conf.read_text() == f"{HOSTS}\n"


WITHOUT = b"glibc-ld.so.cache1.1\0libc.so.6\0/lib/libc.so.6\0libcuda.so.1.bak\0"
WITH = b"glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib/libcuda.so.1\0"


def test_root_puts_a_libcuda_into_the_cache_that_does_not_have_it(tmp_path: Path) -> None:
    """As with a CDI specification whose hook does not renew the cache, seen on a GPU machine."""
    loader = Loader(conf_of(tmp_path))
    cache = tmp_path / effect.LOADER_CACHE
    cache.write_bytes(WITHOUT)

    def renew() -> bool:
        cache.write_bytes(WITH)
        return loader()

    assert applied(LEAVE, tmp_path, renew) == (effect.CACHE, {})
    assert applied(LEAVE, tmp_path, renew) == (effect.NOTHING, {})
    assert loader.seen == [""]  # once: then it is there


@pytest.mark.parametrize("answer", [*FAILURES, True])
def test_triton_is_told_of_a_libcuda_that_the_cache_does_not_get(
    tmp_path: Path, answer: bool | Exception
) -> None:
    """Another user, a read-only system, or a library that ldconfig does not find."""
    loader = Loader(conf_of(tmp_path), answer)
    cache = tmp_path / effect.LOADER_CACHE
    cache.write_bytes(WITHOUT)
    told = {"TRITON_LIBCUDA_PATH": HOSTS}
    assert applied(LEAVE, tmp_path, loader) == (effect.NOTHING, told)
    assert applied(LEAVE, tmp_path, loader, TRITON_LIBCUDA_PATH="/mine") == (effect.NOTHING, {})
    old = {"TRITON_LIBCUDA_PATH": "/opt/cuda-compat/12.8"}
    assert applied(LEAVE, tmp_path, loader, **old) == (effect.NOTHING, told)
    assert len(loader.seen) == 2
    nothing = effect.apply(LEAVE, Host(), tmp_path, {}, "/opt/cuda-compat", ldconfig=loader)
    assert nothing == (effect.NOTHING, {})
    cache.write_bytes(WITH)
    assert applied(LEAVE, tmp_path, loader) == (effect.NOTHING, {})
    assert len(loader.seen) == 2


ELSEWHERE = "/usr/local/nvidia/lib64"
GKE = Host(driver="580.95.05", library=f"{ELSEWHERE}/libcuda.so.1", nodes=True)


def cached(root: Path, conf: Path) -> Callable[[], bool]:
    """An ldconfig: the cache gets what the configuration names, after the system's own."""

    def run() -> bool:
        folders = conf.read_text().splitlines() if conf.exists() else []
        found = "".join(f"libcuda.so.1\0{folder}/libcuda.so.1\0" for folder in folders)
        (root / effect.LOADER_CACHE).write_bytes(WITHOUT + found.encode())
        return True

    return run


@pytest.mark.parametrize(("choice", "folders"), [(LEAVE, [ELSEWHERE]), (TAKE, [OURS, ELSEWHERE])])
def test_root_gives_the_loader_a_folder_where_it_does_not_look(
    tmp_path: Path, choice: Choice, folders: list[str]
) -> None:
    """GKE's device plugin mounts it there and names it nowhere. NVML is there, too."""
    conf = conf_of(tmp_path)
    ldconfig = cached(tmp_path, conf)
    ldconfig()
    for _ in range(2):  # the second one must not take the first for the image's own state
        found = effect.apply(choice, GKE, tmp_path, {}, "/opt/cuda-compat", ldconfig=ldconfig)
        assert found == (effect.CACHE, {})
        assert conf.read_text().splitlines() == folders
    moved = effect.apply(LEAVE, HOST, tmp_path, {}, "/opt/cuda-compat", ldconfig=ldconfig)
    assert moved == (effect.NOTHING, {"TRITON_LIBCUDA_PATH": HOSTS})
    assert not conf.exists()


def test_another_user_is_told_of_a_folder_where_the_loader_does_not_look(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / effect.LOADER_CACHE).write_bytes(WITHOUT)
    for choice, folders in ((LEAVE, [ELSEWHERE]), (TAKE, [OURS, ELSEWHERE])):
        found = effect.apply(
            choice, GKE, tmp_path, {"LD_LIBRARY_PATH": "/mine"}, "/opt/cuda-compat"
        )
        path = ":".join([*folders, "/mine"])
        wanted = {"LD_LIBRARY_PATH": path, "TRITON_LIBCUDA_PATH": folders[0]}
        assert found == (effect.ENVIRONMENT, wanted)


def test_a_folder_that_ld_library_path_names_reaches_docker_exec(tmp_path: Path) -> None:
    """Docker does not hand the variables of a CDI specification to it. Root's cache does."""
    conf, place = conf_of(tmp_path), tmp_path / "nvidia"
    place.mkdir()
    (place / "libcuda.so.1").touch()
    host = Host(driver="580.95.05", library=f"{place}/libcuda.so.1", nodes=True)
    environ = {"LD_LIBRARY_PATH": f"/mine:{place}"}
    ldconfig = cached(tmp_path, conf)
    ldconfig()
    found = effect.apply(LEAVE, host, tmp_path, environ, "/opt/cuda-compat", ldconfig=ldconfig)
    assert found == (effect.CACHE, {})
    assert conf.read_text() == f"{place}\n"
    conf.unlink()
    ldconfig()
    for choice, wanted in (
        (LEAVE, (effect.NOTHING, {"TRITON_LIBCUDA_PATH": str(place)})),
        (
            TAKE,
            (
                effect.ENVIRONMENT,
                {"LD_LIBRARY_PATH": f"{OURS}:/mine:{place}", "TRITON_LIBCUDA_PATH": OURS},
            ),
        ),
    ):
        found = effect.apply(
            choice, host, tmp_path, environ, "/opt/cuda-compat", ldconfig=lambda: False
        )
        assert found == wanted


def test_the_toolkits_choice_stays_before_such_a_folder(tmp_path: Path) -> None:
    conf = conf_of(tmp_path)
    cached(tmp_path, conf)()
    toolkits = Choice("toolkit", works=True, reason="")
    host = Host(driver="570.86.15", library=f"{ELSEWHERE}/libcuda.so.1", toolkit=LIBRARY)
    effect.apply(toolkits, host, tmp_path, {}, "/opt/cuda-compat", ldconfig=cached(tmp_path, conf))
    assert not conf.exists()


def test_several_variables_are_lines_of_their_own() -> None:
    assert effect.exports({"A": "1", "B": "2 '3"}) == "export A=1\nexport B='2 '\"'\"'3'\n"
    assert effect.exports({}) == ""


@pytest.mark.parametrize(("status", "well"), [(0, True), (1, False)])
def test_the_program_that_writes_the_cache(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    status: int,
    well: bool,
) -> None:
    """What it prints must not reach the shell that evaluates what a start prints.

    It runs as a stand-in: the real one would write this machine's cache.
    """
    program = tmp_path / "ldconfig"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\necho out\necho err >&2\nexit {status}\n")
    program.chmod(0o755)
    real, asked = subprocess.run, []

    def stand_in(command: list[str], **options: object) -> object:
        asked.append((command, options["timeout"]))
        return real([str(program), *command[1:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", stand_in)
    monkeypatch.setenv("LD_PRELOAD_OF_A_TEST", "x")
    assert effect.run_ldconfig() is well
    assert asked == [(["/sbin/ldconfig"], 10)]
    assert capfd.readouterr() == ("", "")
    told = (tmp_path / "env").read_text()
    assert "LC_ALL=C\n" in told
    assert "LD_PRELOAD_OF_A_TEST" not in told
