"""Advisories: what a scanner is asked, what its report says, and what the project says on it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packageurl import PackageURL

from tests.unit.fakes import FakeRunner
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.errors import (
    CommandError,
    ConfigError,
    LockError,
    NetworkError,
    UsageError,
    VerifyError,
)
from torch_images.fetch import tools
from torch_images.host.network import Network
from torch_images.host.runner import Completed
from torch_images.host.workspace import Workspace
from torch_images.locks.image_lock import image_lock
from torch_images.verify import scan as scanning
from torch_images.verify.advisories import Finding, failing, line, read_report, state
from torch_images.verify.scan import lock_bill, scan
from torch_images.verify.vex import CONTEXT, DAYS, Statement, read_statements

TODAY = dt.date(2026, 11, 24)
CURL = "pkg:deb/debian/curl@7.88.1-10?distro=debian-12&distro_name=bookworm"


def silent(text: str) -> None:
    """Says nothing."""


def report(*entries: dict[str, Any], components: Sequence[dict[str, str]] = ()) -> str:
    return json.dumps({"components": list(components), "vulnerabilities": list(entries)})


def advisory(name: str, *severities: str, ref: str = "pkg:pypi/jinja2@3.1.2") -> dict[str, Any]:
    return {"id": name, "ratings": [{"severity": s} for s in severities], "affects": [{"ref": ref}]}


# What scanners write.


def test_findings_come_by_severity_and_the_worst_rating_counts() -> None:
    found = read_report(
        report(
            advisory("CVE-4"),
            advisory("CVE-3", "low", "HIGH"),
            advisory("CVE-2", "medium"),
            advisory("CVE-1", "critical", "none"),
            advisory("CVE-1", "critical"),
            advisory("CVE-5", "info"),
        )
    )
    assert [(f.advisory, f.severity) for f in found] == [
        ("CVE-1", "critical"),
        ("CVE-3", "high"),
        ("CVE-2", "medium"),
        ("CVE-4", "unknown"),
        ("CVE-5", "unknown"),
    ]
    assert {(f.package, f.version) for f in found} == {("jinja2", "3.1.2")}


def test_names_advice_and_the_packages_of_the_image() -> None:
    entry = advisory("CVE-1", "low", ref=CURL) | {
        "references": [{"id": "GHSA-a"}, {"id": "CVE-1"}, {"url": "x"}],
        "recommendation": "Update to version 8. " + "x" * 200,
    }
    [found] = read_report(report(entry), {CURL: ["pkg:deb/debian/libcurl4@7.88.1-10+b1"]})
    assert found.aliases == ("GHSA-a",)
    assert found.advice.startswith("Update to version 8. xx")
    assert len(found.advice) == 80
    assert found.purls == ("pkg:deb/debian/libcurl4@7.88.1-10+b1", CURL)
    assert line(found).startswith("low       curl 7.88.1-10  CVE-1, GHSA-a  Update to version 8.")


@pytest.mark.parametrize("ref", ["part-7", "urn:cdx:3e671687-395b-41f5-a30f-a58921a69b79/1#part-7"])
def test_a_report_may_refer_to_its_components(ref: str) -> None:
    """As Grype's and Trivy's do; the first names packages by their files' names."""
    purl = "pkg:deb/debian/libcurl4@7.88.1-10?upstream=curl%407.88.1"
    [found] = read_report(
        report(advisory("CVE-1", "high", ref=ref), components=[{"bom-ref": "part-7", "purl": purl}])
    )
    assert (found.package, found.version) == ("curl", "7.88.1-10")
    assert len(found.purls) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"vulnerabilities": {}}',
        '{"vulnerabilities": [7]}',
        '{"vulnerabilities": [{"id": 7}]}',
        '{"vulnerabilities": [{"id": "a", "affects": [{}]}]}',
        '{"vulnerabilities": [{"id": "a", "affects": [{"ref": "not a purl"}]}]}',
        '{"vulnerabilities": [{"id": "a", "ratings": [7]}]}',
        '{"components": [{"bom-ref": [], "purl": "pkg:pypi/a"}]}',
    ],
)
def test_a_report_that_cannot_be_understood(text: str) -> None:
    with pytest.raises(VerifyError) as caught:
        read_report(text)
    assert str(caught.value).isprintable()


def test_a_finding_cannot_command_a_terminal() -> None:
    entry = advisory("CVE-\x1b[31m", "low") | {"recommendation": "\x1b]0;x\x07"}
    [found] = read_report(report(entry))
    assert line(found).isprintable()


@pytest.mark.parametrize(
    ("fail_on", "names"),
    [
        ("critical", ["C"]),
        ("high", ["C", "H"]),
        ("medium", ["C", "H", "M"]),
        ("low", ["C", "H", "M", "L"]),
        ("any", ["C", "H", "M", "L", "U"]),
    ],
)
def test_what_fails(fail_on: str, names: list[str]) -> None:
    words = ("critical", "high", "medium", "low", "unknown")
    held = [
        Finding(advisory=word[0].upper(), severity=word, package="p", version="1") for word in words
    ]
    known = [
        Finding(advisory="K", severity=word, package="p", version="1", status="affected")
        for word in words
    ]
    assert [f.advisory for f in failing([*held, *known], fail_on)] == names


# What the project says on them.


def vex(tmp_path: Path, *statements: dict[str, Any], **document: Any) -> Path:
    path = tmp_path / "vex.json"
    whole = {"@context": CONTEXT, "timestamp": "2026-11-01T00:00:00Z", "statements": statements}
    path.write_text(json.dumps({**whole, **document}))
    return path


def statement(**changes: Any) -> dict[str, Any]:
    return {
        "vulnerability": {"name": "CVE-1", "aliases": ["GHSA-a"]},
        "products": [{"@id": "pkg:deb/debian/curl"}],
        "status": "not_affected",
        "justification": "vulnerable_code_not_in_execute_path",
        "impact_statement": "nothing here speaks SMB",
        **changes,
    }


@pytest.mark.parametrize(
    ("product", "name", "covered"),
    [
        ("pkg:deb/debian/curl", "CVE-1", True),
        ("pkg:deb/debian/curl", "GHSA-a", True),
        ("pkg:deb/debian/curl@7.88.1-10", "CVE-1", True),
        ("pkg:deb/debian/curl@7.88.1-11", "CVE-1", False),
        ("pkg:deb/ubuntu/curl", "CVE-1", False),
        ("pkg:pypi/curl", "CVE-1", False),
        ("pkg:deb/debian/wget", "CVE-1", False),
        ("pkg:deb/debian/curl", "CVE-10", False),
    ],
)
def test_a_statement_is_about_a_package_and_an_advisory(
    tmp_path: Path, product: str, name: str, *, covered: bool
) -> None:
    statements = read_statements(vex(tmp_path, statement(products=[{"@id": product}])), TODAY)
    [found] = state(read_report(report(advisory(name, "critical", ref=CURL))), statements)
    assert found.dismissed == covered
    assert bool(failing([found], "critical")) != covered
    if covered:
        assert line(found).endswith("not_affected: nothing here speaks SMB")


def test_what_is_known_to_apply_is_not_new_but_stays_in_sight(tmp_path: Path) -> None:
    known = statement(status="affected", action_statement="Debian has no fix yet")
    later = statement(status="under_investigation", status_notes="asked upstream")
    [first] = read_statements(vex(tmp_path, known), TODAY)
    assert first.applies
    found = state(
        read_report(report(advisory("CVE-1", "critical", ref=CURL))),
        read_statements(vex(tmp_path, known, later), TODAY),
    )
    assert [(f.status, f.reason, f.dismissed) for f in found] == [
        ("under_investigation", "asked upstream", False)
    ]
    assert not failing(found, "any")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"status": "fine"}, "status 'fine' is none of not_affected, affected"),
        ({"justification": "trust me"}, "'justification' is none of component_not_present"),
        ({"justification": None}, "'justification' is none of"),
        ({"impact_statement": " "}, "CVE-1 is not_affected without 'impact_statement'"),
        ({"status": "affected"}, "CVE-1 is affected without 'action_statement'"),
        ({"status": "fixed"}, "CVE-1 is fixed without 'status_notes'"),
        ({"products": []}, "CVE-1 names no products"),
        ({"products": [{"@id": "curl"}]}, "product 'curl' is not a package URL"),
        ({"products": [7]}, "'@id' is missing"),
        ({"vulnerability": "CVE-1"}, "'vulnerability.name' is missing"),
        ({"until": "2030-01-01"}, "unknown key 'until'"),
        ({"timestamp": "soon"}, "'soon' is not a time"),
        ({"timestamp": "2026-12-01T00:00:00Z"}, "is of 2026-12-01, which is yet to come"),
        (
            {"timestamp": "2026-05-01T00:00:00Z"},
            "CVE-1 was last looked at on 2026-05-01, more than 180 days ago: look again",
        ),
    ],
)
def test_a_statement_that_says_nothing(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    good = statement(vulnerability={"name": "CVE-0"})
    with pytest.raises(ConfigError) as caught:
        read_statements(vex(tmp_path, good, statement(**changes)), TODAY)
    assert str(caught.value).startswith("vex.json: statement 2: ")
    assert problem in str(caught.value)
    assert str(caught.value).endswith("see docs/scan.md for an example")


def test_a_statement_ends_when_nobody_looked_at_it(tmp_path: Path) -> None:
    old = {"timestamp": "2020-01-01T00:00:00Z"}
    last = TODAY - dt.timedelta(days=DAYS)
    path = vex(tmp_path, statement(**old, last_updated=f"{last}T00:00:00Z"))
    assert read_statements(path, TODAY)
    with pytest.raises(ConfigError, match="more than 180 days ago"):
        read_statements(path, TODAY + dt.timedelta(days=1))
    with pytest.raises(ConfigError, match="has no timestamp"):
        read_statements(vex(tmp_path, statement(), timestamp=None), TODAY)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "it is not JSON"),
        ("[]", "'it' is not an object"),
        ("{}", "'@context' is missing"),
        ('{"@context": "x", "statements": []}', "'@context' is not https://openvex.dev"),
        (json.dumps({"@context": CONTEXT}), "'statements' is missing"),
        (json.dumps({"@context": CONTEXT, "statement": []}), "unknown key 'statement'"),
        (" " * 1_000_001, "it is larger than 1000 kB"),
    ],
)
def test_a_file_that_is_no_openvex(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "vex.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_statements(path, TODAY)
    assert problem in str(caught.value)


def test_without_a_file_nothing_is_said(tmp_path: Path) -> None:
    assert read_statements(tmp_path / "vex.json", TODAY) == ()
    with pytest.raises(ConfigError, match="Is a directory"):
        read_statements(tmp_path, TODAY)


def test_the_example_of_the_page_is_understood(root: Path, tmp_path: Path) -> None:
    text = (root / "docs" / "scan.md").read_text().partition("```json\n")[2].partition("```")[0]
    path = tmp_path / "vex.json"
    path.write_text(text)
    [found] = read_statements(path, TODAY)
    assert isinstance(found, Statement)
    assert not found.applies


# What the scanner is asked.


class Scanner(FakeRunner):
    """dep-scan: keeps what it is asked, and writes a report for what it knows."""

    def __init__(self, known: dict[str, dict[str, Any]], *, downloads: bool = True) -> None:
        super().__init__()
        self.known, self.downloads = known, downloads
        self.asked: dict[str, list[str]] = {}
        self.environments: list[dict[str, str]] = []

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        words = list(command)
        if "depscan.cli" not in words:
            return super().run(command, **options)
        bill = Path(words[words.index("--bom") + 1])
        folder = Path(options["env"]["VDB_HOME"])
        purls = [part["purl"] for part in json.loads(bill.read_text())["components"]]
        self.asked[folder.name] = purls
        self.environments.append(options["env"])
        if self.downloads:
            database(folder.parent, folder.name)
        if entries := [self.known[purl] for purl in purls if purl in self.known]:
            reports = Path(words[words.index("--reports-dir") + 1])
            reports.mkdir()
            (reports / bill.name).write_text(report(*entries))
        return Completed(0, "")


def database(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in ("data.vdb6", "data.index.vdb6", "vdb.meta"):
            (folder / name / file).touch()
    return folder


@pytest.fixture
def workspace(root: Path, tmp_path: Path) -> Workspace:
    return Workspace(root=root, cache=tmp_path / "cache", network=Network(), locks=root / "locks")


def bill(*purls: str) -> str:
    return json.dumps({"components": [{"purl": purl} for purl in purls]})


HELD = bill(
    "pkg:pypi/torch@2.14.1+cu130",
    "pkg:deb/debian/libcurl4@7.88.1-10+b2?arch=amd64&distro=debian-12&upstream=curl",
    "pkg:deb/debian/curl@7.88.1-10?arch=amd64&distro=debian-12",
    "pkg:deb/nvidia/cuda-compat-13-0@580.95?arch=amd64",
)


def test_debians_packages_are_asked_about_by_their_sources(
    workspace: Workspace, tmp_path: Path
) -> None:
    run = Scanner({CURL: advisory("CVE-1", "high", ref=CURL)})
    found = scan(HELD, database(tmp_path / "db", "app", "debian"), workspace, run, silent)
    assert run.asked == {"app": ["pkg:pypi/torch@2.14.1"], "debian": [CURL]}
    assert found.unasked == ("cuda-compat-13-0 580.95",)
    [finding] = found.findings
    assert [PackageURL.from_string(p).name for p in finding.purls] == ["libcurl4", "curl", "curl"]


def test_a_given_database_is_taken_as_it_is(workspace: Workspace, tmp_path: Path) -> None:
    run = Scanner({}, downloads=False)
    folder = database(tmp_path / "db", "app", "debian")
    assert not scan(HELD, folder, workspace, run, silent).findings
    assert {e["VDB_AGE_HOURS"] for e in run.environments} == {"1000000"}
    with pytest.raises(UsageError, match=r"debian has no data\.vdb6; --db names a folder with"):
        scan(HELD, database(tmp_path / "half", "app"), workspace, run, silent)
    scan(bill("pkg:pypi/torch@2"), tmp_path / "half", workspace, run, silent)


def test_no_report_is_no_finding_only_where_there_is_a_database(workspace: Workspace) -> None:
    said: list[str] = []
    assert not scan(HELD, None, workspace, Scanner({}), said.append).findings
    assert said[0] == "dep-scan looks 1 packages up (app), after it got its database"
    (workspace.cache / "advisories" / "app" / "vdb.meta").unlink()
    with pytest.raises(NetworkError, match="no database of advisories for app; let it reach"):
        scan(HELD, None, workspace, Scanner({}, downloads=False), silent)


def test_a_scanner_that_fails(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(FakeRunner):
        def run(self, command: Sequence[str], **options: Any) -> Completed:
            raise CommandError("depscan", 1, "Traceback\n  x\napsw.NotADBError: no database\n")

    monkeypatch.setattr(scanning, "install_scanner", lambda *_: Path("x"))
    with pytest.raises(VerifyError, match=r"dep-scan failed: apsw\.NotADBError: no database; is "):
        scan(HELD, None, workspace, Failing(), silent)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"components": [{}]}', '{"components": [{"purl": "x"}]}']
)
def test_a_bill_that_cannot_be_understood(workspace: Workspace, text: str) -> None:
    with pytest.raises(VerifyError, match="the bill of materials cannot be understood"):
        scan(text, None, workspace, FakeRunner(), silent)


def test_the_scanner_is_installed_once_with_its_hashes(workspace: Workspace) -> None:
    run = FakeRunner()
    folder = tools.install_scanner(workspace, run)
    assert tools.install_scanner(workspace, run) == folder
    [command] = run.commands
    assert {"--require-hashes", "--no-deps", str(workspace.root / "locks/scan.txt")} < set(command)
    with pytest.raises(LockError, match=r"there is no locks/scan\.txt"):
        tools.install_scanner(
            Workspace(
                root=workspace.cache,
                cache=workspace.cache,
                network=workspace.network,
                locks=workspace.locks,
            ),
            run,
        )


def test_a_lock_has_a_bill_of_its_own(config: Config, root: Path) -> None:
    spec = choose(config, variant="pod", cuda="12.8")
    text = lock_bill(spec.id, image_lock(config, spec, root / "locks"))
    parts = [PackageURL.from_string(p["purl"]) for p in json.loads(text)["components"]]
    named = {(p.type, p.namespace, p.name): p for p in parts}
    assert ("pypi", None, "torch") in named
    assert ("pypi", None, "nvidia-cutlass") in named
    curl = named["deb", "debian", "libcurl4"]
    assert curl.qualifiers == {"distro": "debian-12", "upstream": "curl"}
    # From the archive of security updates, whose pool lies elsewhere.
    assert named["deb", "debian", "libapt-pkg6.0"].qualifiers["upstream"] == "apt"
    assert any(p.type == "generic" and p.name == "cuda_nvcc" for p in parts)
    assert any(p.namespace == "nvidia" and p.name.startswith("cuda-compat") for p in parts)
    assert text == lock_bill(spec.id, image_lock(config, spec, root / "locks"))
