"""The kinds of text that fields of images.yaml may hold."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from torch_images.config import fields
from torch_images.config.cuda import Cuda

LONG = "9" * 900


def complaint(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    wrong = caught.value.errors()[0]["ctx"]["error"]
    return f"{wrong.problem}; {wrong.hint}"


@pytest.mark.parametrize(
    ("kind", "problem", "texts"),
    [
        # What apt reads as more than a name.
        (fields.DebianPackage, "is not the name of a Debian package", [
            "make-", "apt-", "make*", "^git$", "lamp^", "?essential", "~n.", "m..e", "mak.", "g.+",
            "make/sid", "make=4", "make:i386", "--purge", "$(reboot)"]),
        (fields.Name, "is not a name; use lower-case", ["La pack", "a..b", "-a", "a-", "ü"]),
        (fields.Name, "is too long; give one of at most 24 characters", ["a" * 25]),
        (fields.PlainName, "is not a name; use lower-case", ["x-q", "-a", "a..b", "9a", "A"]),
        (fields.PlainName, "is too long; give one of at most 24 characters", ["a" * 25]),
        # Paths in Dockerfiles and in the shell of a step.
        (fields.Folder, "is not an absolute path", [
            "/opt/../etc", "/opt/./x", "/opt/..", "/opt/a b", "/opt/$HOME", "/opt/x/", "/", "/..",
            "/w`id`", "/usr/*", '/usr/"x', "cuda"]),
        (fields.OwnFolder, "is, contains or is inside /opt/venv; give a separate folder", ["/opt"]),
        (fields.OwnFolder, "is, contains or is inside /etc", ["/etc", "/etc/x"]),
        (fields.OwnFolder, "is, contains or is inside /usr/bin", ["/usr"]),
        (fields.Below, "is not a path below the folder", [
            "../etc", "a b", "a=b", "/a", "a/../../b", "a/", "."]),
        (fields.Glob, "is not a path below site-packages, with * and ?", [
            "/sympy/*", "sympy/../x", "../*", "a b"]),
        (fields.SecureUrl, "is not an https URL", ["http://a", "https://h/../p", "https://u:p@h"]),
        (fields.Url, "is not an http or https URL", [
            "/srv", "file://dev", "ftp://api", "https://me:secret@api", "https://h/x?y", "https://"]),
        (fields.Url, "has no port", ["https://h:65536", "https://h:0/x", f"http://h:{LONG}"]),
        (fields.Port, "is not a port; give one from 1 to 65535", [
            "65536", "0", "022", "-1", "²", "ssh", LONG, "1_0", " 1"]),
        (fields.Served, "is not a port like 22/tcp", ["8888", "022/tcp", "22/udp"]),
        (fields.Served, "has no port; give one from 1 to 65535", ["65536/tcp"]),
        (fields.Gigabytes, "is not a number of GB; give one from 1 to 99999", ["0", "20GB"]),
        (fields.Pin, "does not pin a version", [LONG, ".nan", ">=2.11", "three"]),
        (fields.Pin, "is not valid in a tag", ["1!2.11.0"]),
        (fields.Pin, "names a local version; write 2.11.0", ["2.11.0+cu130"]),
        (fields.CanonicalPin, "is not in PEP 440's normal form; write 2.12", ["v2.12"]),
        (fields.Branch, "is not a driver branch like 580", ["525.60", "x", "0525"]),
        (fields.Arch, "is not a compute capability like 9.0", ["8", "sm_90", "12.0a"]),
        (fields.ArchName, "is not a compute capability like 9.0", ["8"]),
        (fields.PlatformName, "is not a platform; did you mean 'linux/amd64'?", ["amd64"]),
        (fields.WheelName, "is not the name of a wheel", ["Cuda_Bindings", "sym py", "a>=1", "../x"]),
        (fields.WheelName, "is not the name of a wheel; write sym-py", ["Sym_Py"]),
        (fields.Registry, "is not a registry", ["..", "me:secret@x"]),
        (fields.Owner, "is not a lower-case name", ["Torch Images"]),
        (fields.Option, "is not the name of an option", ["USE-CUDNN", "2BUILD", "A=B"]),
        (fields.Commit, "is not a full commit of 40 hexadecimal digits", ["main", "a58677f"]),
        (fields.Variable, "is not the name of a variable", ["A-B"]),
    ],
)  # fmt: skip
def test_refused_texts(kind: Any, problem: str, texts: list[str]) -> None:
    for text in texts:
        assert complaint(kind, text).startswith(problem), text


@pytest.mark.parametrize(
    ("problem", "texts"),
    [
        ("has a marker or parentheses", ["a; (((((((((((os_name=='x'"]),
        ("has a marker or parentheses", [f"a; {'(' * 190}"]),
        ("is longer than 200 characters", [f"a=={LONG}"]),
        ("is not acceptable here", ["a===x"]),
        ("is not acceptable here; name a package of the index; torch is set per", ["torch"]),
        ("is not acceptable here", ["a @ https://x/y.whl"]),
        ("is not a requirement", ["-r/etc/passwd"]),
        ("is not a requirement", ["a =="]),
        ("names a again, after 'a>=1'; join what is required", ["a>=1", "A<2"]),
    ],
)
def test_refused_requirements(problem: str, texts: list[str]) -> None:
    assert complaint(fields.Requirements, texts).startswith(problem)


@pytest.mark.parametrize(
    ("releases", "problem"),
    [
        (["2.12.1", "2.11.0"], "does not come after 2.12.1; list the oldest first"),
        (["2.11.0", "2.11"], "does not come after 2.11.0"),
    ],
)
def test_releases_are_in_order(releases: list[str], problem: str) -> None:
    assert complaint(fields.Pins, releases).startswith(problem)


@pytest.mark.parametrize(
    ("field", "problem", "text"),
    [
        ("driver", "is not a Linux driver version like 580.65.06", "580"),
        ("toolkit", "is not a part of cuda-toolkit like nvcc", ["CCCL"]),
        ("archives", "is not the name of an archive of CUDA's", ["../x"]),
        ("nvcc-flags", "is not a row of flags like -compress-mode=size", "$(id) -x"),
    ],
)
def test_refused_fields_of_a_cuda_version(field: str, problem: str, text: object) -> None:
    plain = {"": "13.0", "driver": "580.65.06", "floor": "580", "targets": ["9.0"], "base": "a"}
    assert TypeAdapter(Cuda).validate_python(plain).version == "13.0"
    assert complaint(Cuda, {**plain, field: text}).startswith(problem)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (fields.DebianPackage, [
            "g++", "memtest86+", "libstdc++6", "golang-gopkg-errgo.v2-dev", "0ad", "xz"]),
        (fields.OwnFolder, ["/opt/venv2", "/usr/local/cuda"]),
        (fields.Option, ["CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDAFLAGS", "MKL_ROOT"]),
        (fields.PlainName, ["trixie1.2", "a" * 24]),
        (fields.Served, ["1/tcp", "65535/http"]),
    ],
)  # fmt: skip
def test_texts_that_may_look_odd(kind: Any, texts: list[str]) -> None:
    for text in texts:
        assert TypeAdapter(kind).validate_python(text) == text
    assert [TypeAdapter(fields.Port).validate_python(text) for text in ("1", "65535")] == [1, 65535]
