from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_images.errors import LockError
from torch_images.locks.debs import LockedDeb, parse_packages


def deb(name: str, version: str = "1", **changed: str) -> LockedDeb:
    locked = LockedDeb(
        name=name,
        version=version,
        archive="debian",
        path=f"pool/{name}_{version}_all.deb",
        size=1,
        sha256="0" * 64,
    )
    return dataclasses.replace(locked, **changed)  # type: ignore[arg-type]


# As apt 2.6 prints it.
PRINTED = f"""\
index http://mirror/debian/ Debian
index http://mirror/debian-security/ Debian-Security
Reading package lists...
The following NEW packages will be installed:
  tini zlib1g-dev
'http://mirror/debian/pool/main/z/zlib/zlib1g-dev_1.2.13.dfsg-1_amd64.deb' zlib1g-dev_1%3a1.2.13.dfsg-1_amd64.deb 916272 SHA256:{"a" * 64}
'http://mirror/debian-security/pool/updates/main/t/tini/tini_0.19.0-1%2bb3_amd64.deb' tini_0.19.0-1+b3_amd64.deb 267204 SHA256:{"b" * 64}
"""


def test_reads_what_apt_prints() -> None:
    assert parse_packages(PRINTED) == (
        LockedDeb(
            name="tini",
            version="0.19.0-1+b3",
            archive="debian-security",
            path="pool/updates/main/t/tini/tini_0.19.0-1+b3_amd64.deb",
            size=267204,
            sha256="b" * 64,
        ),
        LockedDeb(
            name="zlib1g-dev",
            version="1:1.2.13.dfsg-1",
            archive="debian",
            path="pool/main/z/zlib/zlib1g-dev_1.2.13.dfsg-1_amd64.deb",
            size=916272,
            sha256="a" * 64,
        ),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [("SHA256:a", "MD5Sum:a"), ("'http://mirror/debian/", "'http://elsewhere/debian/")],
)
def test_parse_packages_refuses_a_package_without_hash_or_index(old: str, new: str) -> None:
    with pytest.raises(LockError, match="apt offers a package without index or SHA-256"):
        parse_packages(PRINTED.replace(old, new))


@given(st.text())
def test_parse_packages_of_any_output(text: str) -> None:
    try:
        assert isinstance(parse_packages(text), tuple)
    except LockError as error:
        assert "\n" not in str(error)
