"""A scanner's report -> findings, with what the project says on each. Pure.

A report is CycloneDX with `vulnerabilities`, which depscan, Grype and Trivy write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from packageurl import PackageURL

from torch_images import jsondoc
from torch_images.errors import VerifyError, shown
from torch_images.verify.vex import Statement

# The worst first. A scanner that does not know says "unknown", "none" or "info", or nothing.
SEVERITIES = ("critical", "high", "medium", "low", "unknown")
ANY = "any"
FAIL_ON = (*SEVERITIES[:-1], ANY)
_ADVICE = 80  # characters of a scanner's advice


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An advisory on a package of an image.

    `advisory`, `aliases`: its names, such as CVE-2026-1.
    `severity`: the worst that the report rates it, one of SEVERITIES.
    `package`, `version`: what the image has; of Debian, the source package.
    `advice`: what the report advises, such as another version; "" for nothing.
    `status`, `reason`: what the project says on it; "" for nothing yet.
    `purls`: the packages of the image that it is about.
    """

    advisory: str
    severity: str
    package: str
    version: str
    aliases: tuple[str, ...] = ()
    advice: str = ""
    status: str = ""
    reason: str = ""
    purls: tuple[str, ...] = ()

    @property
    def dismissed(self) -> bool:
        """Whether the project says that it does not apply to the image."""
        return self.status in ("not_affected", "fixed")


def read_report(text: str, originals: Mapping[str, Sequence[str]] | None = None) -> list[Finding]:
    """The findings of a report, the worst first.

    `originals` are the package URLs of the image by the URL under which the scanner was asked.
    Raises VerifyError for a report that cannot be understood.
    """
    try:
        document = jsondoc.parse(text)
        parts = {
            jsondoc.member(part, "bom-ref", kind=str): jsondoc.member(part, "purl", kind=str)
            for part in jsondoc.optional(document, "components", kind=list)
            if isinstance(part, dict) and "bom-ref" in part and "purl" in part
        }
        found = {
            (finding.advisory, finding.package, finding.version): finding
            for entry in jsondoc.optional(document, "vulnerabilities", kind=list)
            for finding in _findings(entry, parts, originals or {})
        }
    except jsondoc.MalformedError as error:
        raise VerifyError(f"the scanner's report cannot be understood: {error}") from None
    return sort(found.values())


def sort(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in the order in which people read them: by severity, package, name."""
    return sorted(
        findings, key=lambda f: (SEVERITIES.index(f.severity), f.package, f.advisory, f.version)
    )


def state(findings: Iterable[Finding], statements: Sequence[Statement]) -> list[Finding]:
    """The same findings, each with what the project says on it. The last statement counts."""
    stated = []
    for finding in findings:
        names = (finding.advisory, *finding.aliases)
        packages = [PackageURL.from_string(purl) for purl in finding.purls]
        said = [s for s in statements if s.covers(names, packages)]
        last = said[-1] if said else None
        stated.append(replace(finding, status=last.status, reason=last.reason) if last else finding)
    return stated


def failing(findings: Iterable[Finding], fail_on: str) -> list[Finding]:
    """New findings: as severe as `fail_on` or more, and without a statement of the project's."""
    worst = SEVERITIES if fail_on == ANY else SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return [f for f in findings if f.severity in worst and not f.status]


def line(finding: Finding) -> str:
    """A finding on one line."""
    names = shown(", ".join((finding.advisory, *finding.aliases[:2])))
    text = f"{finding.severity:<8}  {shown(finding.package)} {shown(finding.version)}  {names}"
    if finding.status:
        return f"{text}  {finding.status}: {finding.reason}"
    return f"{text}  {finding.advice}".rstrip()


def _findings(
    entry: Any, parts: Mapping[str, str], originals: Mapping[str, Sequence[str]]
) -> Iterable[Finding]:
    advisory = jsondoc.member(entry, "id", kind=str)
    ratings = [
        jsondoc.optional(rating, "severity", kind=str).lower()
        for rating in jsondoc.optional(entry, "ratings", kind=list)
    ]
    references = jsondoc.optional(entry, "references", kind=list)
    names = [jsondoc.optional(reference, "id", kind=str) for reference in references]
    for affected in jsondoc.optional(entry, "affects", kind=list):
        reference = jsondoc.member(affected, "ref", kind=str)
        asked = _purl(reference, parts)
        package = PackageURL.from_string(asked)
        # Debian's advisories name source packages; a bill says which one a package is built from.
        source = str((package.qualifiers or {}).get("upstream", "")).partition("@")[0]
        purls = [*originals.get(asked, ()), asked]
        if source:
            purls.append(package._replace(name=source).to_string())
        yield Finding(
            advisory=advisory,
            severity=next((word for word in SEVERITIES if word in ratings), SEVERITIES[-1]),
            package=source or package.name,
            version=package.version or "",
            aliases=tuple(dict.fromkeys(n for n in names if n and n != advisory)),
            advice=shown(jsondoc.optional(entry, "recommendation", kind=str)[:_ADVICE]),
            purls=tuple(dict.fromkeys(purls)),
        )


def _purl(reference: str, parts: Mapping[str, str]) -> str:
    """The package URL that a reference stands for. Raises MalformedError.

    Trivy refers to the bill that it read: urn:cdx:SERIAL/VERSION#REFERENCE.
    """
    names = (reference, unquote(reference.partition("#")[2]))
    text = next((parts[name] for name in names if name in parts), names[1] or names[0])
    try:
        PackageURL.from_string(text)
    except ValueError:
        raise jsondoc.MalformedError(f"'{shown(reference)}' is no package of it") from None
    return text
