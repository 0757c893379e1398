"""The kinds of text that fields of images.yaml may hold."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from torch_images.config import fields


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        # What apt reads as more than a name.
        (fields.DebianPackage, ["make-", "make*", "?essential", "make/sid", "make=4", "make:i386"]),
        (fields.Name, ["La pack", "a..b", "-a", "a" * 25]),
        (fields.PlainName, ["x-q", "9a", "A", "a" * 25]),
        # Paths in Dockerfiles and in the shell of a step.
        (fields.Folder, ["/opt/../etc", "/opt/a b", "/opt/$HOME", "/opt/x/", "/", "cuda"]),
        (fields.Below, ["../etc", "a b", "/a", "a/../../b"]),
        (fields.Glob, ["/sympy/*", "sympy/../x"]),
        (fields.Url, ["ftp://api", "https://me:secret@api", "https://h/x?y"]),
        (fields.Port, ["65536", "ssh"]),
        (fields.Pin, [">=2.11", "2.11.0+cu130"]),
        (fields.Branch, ["525.60"]),
        (fields.ArchName, ["8", "sm_90"]),
        (fields.PlatformName, ["amd64"]),
        (fields.WheelName, ["Sym_Py", "a>=1"]),
        (fields.Commit, ["main", "a58677f"]),
        (fields.Requirements, [["a; os_name=='x'"], ["torch"], ["a @ https://x/y.whl"], ["a =="]]),
    ],
)
def test_field_refuses_value(kind: Any, texts: list[object]) -> None:
    for text in texts:
        with pytest.raises(ValidationError):
            TypeAdapter(kind).validate_python(text)
