"""`invoke scan` with the real scanner and a small database of its own format; no engine."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import invoke
from tests.releases import T130
from torch_images.fetch.tools import install_scanner
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace

IMAGE = f"cu130-sm120-torch{T130}-bookworm-pod"
VECTOR = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"
# Advisories as osv.dev writes them, invented: two that apply and two that are fixed already.
MAKE = """
import json, sys
from vdb.lib import db6
from vdb.lib.osv import OSVSource
source = OSVSource()
for record in json.load(sys.stdin):
    source.store(source.convert(record))
db6.optimize_and_close_all()
"""


def osv(name: str, ecosystem: str, package: str, fixed: str, **more: Any) -> dict[str, Any]:
    # dep-scan's own database has a name of Debian's packages for each release.
    purl = f"pkg:{ecosystem}/{package}"
    return {
        "id": name,
        "modified": "2026-01-01T00:00:00Z",
        "published": "2026-01-01T00:00:00Z",
        "summary": "invented",
        "details": "invented",
        "affected": [
            {
                "package": {"ecosystem": ecosystem, "name": package, "purl": purl},
                "ranges": [
                    {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}
                ],
            }
        ],
        "references": [],
        **more,
    }


RATED = {"severity": [{"type": "CVSS_V3", "score": VECTOR}]}
RECORDS = {
    "app": [
        osv("CVE-2026-90001", "pypi", "jinja2", "99", **RATED),
        osv("CVE-2026-90002", "pypi", "jinja2", "1.0", **RATED),
    ],
    "debian": [
        osv("DEBIAN-CVE-2026-90003", "deb/debian/bookworm", "curl", "99", **RATED),
        osv("DEBIAN-CVE-2026-90004", "deb/debian/bookworm", "curl", "1.0", **RATED),
        osv("DEBIAN-CVE-2026-90005", "deb/debian/trixie", "curl", "99", **RATED),
    ],
}


@pytest.fixture(scope="module")
def database(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that dep-scan's own library made."""
    folder = tmp_path_factory.mktemp("advisories")
    site = install_scanner(workspace, Runner())
    for name, records in RECORDS.items():
        home = folder / name
        home.mkdir()
        env = {"PYTHONPATH": str(site), "VDB_HOME": str(home), "VDB_CACHE": str(home)}
        subprocess.run(
            [sys.executable, "-c", MAKE],
            env={**os.environ, **env},
            input=json.dumps(records),
            text=True,
            check=True,
        )
        (home / "vdb.meta").write_text(json.dumps({"created_utc": "2026-01-01T00:00:00+00:00"}))
    return folder


def test_what_a_lock_holds_is_looked_up(database: Path) -> None:
    done = invoke("scan", IMAGE, "--lock", "--db", str(database))
    assert done.returncode == 1
    rows = [row.split()[:2] + row.split()[3:4] for row in done.stdout.splitlines()]
    assert rows == [
        ["critical", "curl", "CVE-2026-90003"],
        ["critical", "jinja2", "CVE-2026-90001"],
    ]
    assert "not looked up: cuda-compat-13-0 " in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "error: " in last
    assert "2 findings are critical and have no statement; take newer packages" in last


def test_a_statement_makes_it_known(database: Path, tmp_path: Path) -> None:
    path = tmp_path / "vex.json"
    document = {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": "https://example.org/vex",
        "author": "me",
        "timestamp": "2026-11-20T00:00:00Z",
        "version": 1,
        "statements": [
            {
                "vulnerability": {"name": name},
                "products": [{"@id": product}],
                "status": "not_affected",
                "justification": "vulnerable_code_not_in_execute_path",
                "impact_statement": "invented",
                "last_updated": _today(),
            }
            for name, product in (
                # One names the binary package, the other one the wheel.
                ("CVE-2026-90003", "pkg:deb/debian/libcurl4"),
                ("CVE-2026-90001", "pkg:pypi/jinja2"),
            )
        ],
    }
    path.write_text(json.dumps(document))
    words = ("scan", IMAGE, "--lock", "--db", str(database), "--vex", str(path))
    done = invoke(*words, "--fail-on", "any", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["findings"]
    assert [f["status"] for f in found] == ["not_affected"] * 2


def test_another_release_of_debian_has_its_own(database: Path) -> None:
    image = IMAGE.replace("bookworm", "trixie")
    done = invoke("scan", image, "--lock", "--db", str(database), "--json")
    names = {f["advisory"] for f in json.loads(done.stdout)["findings"]}
    assert names == {"CVE-2026-90001", "CVE-2026-90005"}


def test_a_folder_that_is_no_database(tmp_path: Path) -> None:
    done = invoke("scan", IMAGE, "--lock", "--db", str(tmp_path))
    assert done.returncode == 2
    assert "has no data.vdb6; --db names a folder with the databases app and debian" in done.stderr


def test_a_report_of_another_scanner(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    entry = {
        "id": "CVE-2026-1",
        "ratings": [{"severity": "high"}],
        "affects": [{"ref": "pkg:pypi/jinja2@3.1.6"}],
    }
    path.write_text(json.dumps({"vulnerabilities": [entry]}))
    words = ("scan", IMAGE, "--report", str(path))
    assert invoke(*words).returncode == 0
    done = invoke(*words, "--fail-on", "high")
    assert (done.returncode, done.stdout) == (1, "high      jinja2 3.1.6  CVE-2026-1\n")
    assert invoke(*words, "--fail-on", "worst").returncode == 2


def _today() -> str:
    return f"{dt.datetime.now(dt.UTC).date()}T00:00:00+00:00"
