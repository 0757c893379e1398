"""An image's packages against databases of advisories, by OWASP dep-scan.

It is installed from locks/scan.txt, apart from this project's own environment. It looks Python
packages up in one database and Debian's in another, so it runs once for each.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packageurl import PackageURL

from torch_images import jsondoc
from torch_images.errors import CommandError, NetworkError, UsageError, VerifyError, shown
from torch_images.fetch.tools import install_scanner
from torch_images.host.cache import Part
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import ImageLock
from torch_images.verify.advisories import Finding, read_report, sort

# The options that choose a database of dep-scan's, by the folder that it is kept in.
DATABASES = {"app": ("--vdb-scope", "app"), "debian": ("--vdb-distro", "debian")}
_FILES = ("data.vdb6", "data.index.vdb6", "vdb.meta")
_SOURCE = re.compile(r"pool/(?:updates/)?[^/]+/[^/]+/(?P<name>[^/]+)/")
_REBUILT = re.compile(r"\+b[0-9]+$")  # a binary package that Debian built again, of the same source
_RELEASES = {"bookworm": "debian-12", "trixie": "debian-13"}
_CODENAMES = {number: name for name, number in _RELEASES.items()}


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What was found, and the packages that no database was asked about."""

    findings: tuple[Finding, ...]
    unasked: tuple[str, ...]


def lock_bill(identifier: str, lock: ImageLock) -> str:
    """The bill of materials that an image of a lock would have, as far as a scan needs it."""
    release = _RELEASES.get(lock.base.system.rpartition(" ")[2], "")
    distribution = lock.base.system.partition(" ")[0]
    purls = [PackageURL("pypi", None, w.name, w.version) for w in lock.all_wheels]
    purls += [PackageURL("pypi", None, w.name, w.version) for u in lock.unpacked for w in u.wheels]
    purls += [PackageURL("pypi", None, *item) for item in lock.compiled.items()]
    for deb in lock.all_debs:
        source = _SOURCE.search(deb.path)
        qualifiers = {"distro": release, "upstream": source["name"] if source else deb.name}
        purls.append(PackageURL("deb", distribution, deb.name, deb.version, qualifiers))
    for deb in lock.compat.debs if lock.compat else ():
        purls.append(PackageURL("deb", "nvidia", deb.name, deb.version))
    for archive in lock.toolkit.archives if lock.toolkit else ():
        purls.append(PackageURL("generic", "nvidia", archive.name, archive.version))
    return _bill(identifier, (purl.to_string() for purl in purls))


def scan(
    bill: str,
    database: Path | None,
    workspace: Workspace,
    run: Runner,
    say: Callable[[str], None],
) -> Scan:
    """Look the packages of a bill of materials up. `say` is told what takes long.

    With `database`, a folder with a folder for each of DATABASES, nothing is downloaded.
    Raises UsageError for a folder without databases, NetworkError where one cannot be had,
    VerifyError where the scanner fails.
    """
    asked, unasked = _questions(bill)
    folder = workspace.cache / Part.ADVISORIES if database is None else database
    if database is not None:
        for name in asked:
            _check_database(folder / name, database)
    site = install_scanner(workspace, run)
    found: list[Finding] = []
    for name, purls in asked.items():
        first = "" if (folder / name / _FILES[0]).exists() else ", after it got its database"
        say(f"dep-scan looks {len(purls)} packages up ({name}){first}")
        text = _ask(site, name, purls, folder / name, run, offline=database is not None)
        found += read_report(text, purls) if text else []
    return Scan(findings=tuple(sort(found)), unasked=unasked)


def _questions(bill: str) -> tuple[dict[str, dict[str, list[str]]], tuple[str, ...]]:
    """By database, what to ask about and the packages of the image that each stands for.

    Debian's advisories name source packages, and so do the questions. Raises VerifyError.
    """
    asked: dict[str, dict[str, list[str]]] = {}
    unasked = []
    try:
        for part in jsondoc.member(jsondoc.parse(bill), "components", kind=list):
            text = jsondoc.member(part, "purl", kind=str)
            purl = PackageURL.from_string(text)
            if purl.type == "pypi":
                question, name = (
                    purl._replace(version=(purl.version or "").partition("+")[0]),
                    "app",
                )
            elif (purl.type, purl.namespace) == ("deb", "debian"):
                qualifiers = dict(purl.qualifiers or {})
                source = qualifiers.pop("upstream", purl.name).partition("@")[0]
                version = _REBUILT.sub("", purl.version or "")
                distro = qualifiers.get("distro", "")
                # dep-scan's database has a name for each release: pkg:deb/debian/bookworm/curl.
                kept = {"distro": distro, "distro_name": _CODENAMES.get(distro, "")}
                question = PackageURL("deb", "debian", source, version, kept)
                name = "debian"
            else:
                unasked.append(f"{purl.name} {purl.version}")
                continue
            asked.setdefault(name, {}).setdefault(question.to_string(), []).append(text)
    except ValueError as error:  # also MalformedError
        raise VerifyError(f"the bill of materials cannot be understood: {error}") from None
    return asked, tuple(sorted(unasked))


def _ask(
    site: Path, name: str, purls: Iterable[str], database: Path, run: Runner, *, offline: bool
) -> str:
    """dep-scan's report on packages; "" where it finds nothing, for it writes none then."""
    database.mkdir(parents=True, exist_ok=True)
    environment: dict[str, str | None] = {
        "PYTHONPATH": str(site),
        "VDB_HOME": str(database),
        "VDB_CACHE": str(database),
        # It downloads a database that is older than so many hours.
        "VDB_AGE_HOURS": "1000000" if offline else "24",
        "VDB_DOWNLOAD_RETRIES": "1",
        "VDB_DATABASE_URL": None,
    }
    with tempfile.TemporaryDirectory(prefix="torch-images-scan-") as scratch:
        asked, reports = Path(scratch, "bill.json"), Path(scratch, "reports")
        asked.write_text(_bill(name, purls), encoding="utf-8")
        command = [sys.executable, "-m", "depscan.cli", "--no-banner", "--no-vuln-table", "--quiet"]
        command += [*DATABASES[name], "--type", "os", "--bom", str(asked)]
        command += ["--reports-dir", str(reports)]
        try:
            run.run(command, env=environment, cwd=Path(scratch))
        except CommandError as error:
            lines = error.output.strip().splitlines() or ["it said nothing"]
            raise VerifyError(
                f"dep-scan failed: {shown(lines[-1])}", f"is {database} a database of its own?"
            ) from None
        if not all((database / file).is_file() for file in _FILES):
            raise NetworkError(
                f"dep-scan has no database of advisories for {name}",
                "let it reach ghcr.io, or give a folder with databases: --db",
            )
        report = reports / asked.name
        return report.read_text(encoding="utf-8") if report.exists() else ""


def _check_database(folder: Path, database: Path) -> None:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder} has no {missing[0]}",
            f"--db names a folder with the databases {' and '.join(DATABASES)} of dep-scan; "
            f"{database} is not one",
        )


def _bill(name: str, purls: Iterable[str]) -> str:
    """A bill of materials with nothing but package URLs. Equal ones give equal bytes."""
    listed = sorted(dict.fromkeys(purls))
    document: Mapping[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ' '.join(listed))}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "bom-ref": name}},
        "components": [
            {
                "type": "library",
                "name": purl.name,
                "version": purl.version or "",
                "purl": text,
                "bom-ref": text,
            }
            for text in listed
            for purl in [PackageURL.from_string(text)]
        ],
    }
    return json.dumps(document, indent=1) + "\n"
