"""The verbs that prove what an image is, and doctor, which looks at what it will run on."""

from __future__ import annotations

from functools import partial

from invoke.context import Context
from invoke.exceptions import Exit

from torch_images.cli import verb


@verb.verb(
    positional=["image"],
    help={
        "image": "tag, image id or identifier",
        "gpus": "also run what needs a GPU, on these: all, a number, device=0,1, or names of CDI "
        "devices such as nvidia.com/gpu=0",
        "no-cache": "list machine code anew that an earlier verification has listed",
        "json": "print the whole report as JSON",
    },
    example="verify torch-cu130:sm120",
)
def verify(
    c: Context, image: str, gpus: str = "", no_cache: bool = False, json: bool = False
) -> None:
    """Check a built image against images.yaml and its lock."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.host.gpus import check_words
    from torch_images.verify.identify import identify
    from torch_images.verify.verify import require

    check_words(gpus)  # a wrong word is said before anything is looked at
    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    requests = verb.gpu_requests(gpus, engine)
    reference, plan = identify(config, image, workspace, engine)
    proof = verb.verified(
        reference, config, plan, workspace, engine, reuse=False, fresh=no_cache, gpus=requests
    )
    if json:
        print(verb.as_json({**asdict(proof), "passed": proof.passed}))
    require(proof)
    if not json:
        print(report.verified(proof))


@verb.verb(
    positional=["image"],
    help={
        "image": "tag, image id or registry reference",
        "repository": "git repository that has the image's revision, if this one does not",
        "json": "print the verdict as JSON",
    },
    example="reproduce torch-cu130:sm120",
)
def reproduce(c: Context, image: str, repository: str = "", json: bool = False) -> None:
    """Build an image again from nothing, elsewhere, and compare the two."""
    from dataclasses import asdict

    from torch_images.cli import report
    from torch_images.config.matrix import default_platform
    from torch_images.errors import VerifyError
    from torch_images.host.runner import Runner
    from torch_images.publish.registry import exact, has_host, retry
    from torch_images.verify.reproduce import reproduce as again

    config, engine = verb.config(), verb.engine(bootstraps=True)
    if has_host(image) and engine.digest(image) is None:
        # An index has no digest that a build could have: the image for this machine has.
        platform = default_platform(config).name
        image = retry(partial(exact, image, Runner(), platform=platform), retries=5, say=verb.say)
    verdict = again(
        config,
        image,
        verb.workspace(),
        engine=engine,
        run=Runner(),
        repository=repository,
    )
    print(verb.as_json(asdict(verdict)) if json else report.verdict(verdict))
    if not verdict.reproducible:
        count = len(verdict.differences)
        raise VerifyError(f"{image} is not reproducible: {count} differences")


@verb.verb(
    positional=["image"],
    help={"image": "tag, image id or identifier"},
    example="sbom torch-cu130:sm120",
)
def sbom(c: Context, image: str) -> None:
    """Print the bill of materials of an image: CycloneDX, JSON."""
    from torch_images.verify.identify import identify
    from torch_images.verify.sbom import read

    config, workspace, engine = verb.config(), verb.workspace(), verb.engine()
    reference, _ = identify(config, image, workspace, engine)
    print(read(reference, engine), end="")


@verb.verb(
    positional=["image"],
    help={
        "image": "tag, image id or identifier",
        "lock": "scan what the lock of an identifier holds; needs no engine and no built image",
        "db": "folder with the scanner's databases; nothing is downloaded then",
        "report": "take another scanner's findings: a file, CycloneDX with vulnerabilities",
        "vex": "OpenVEX file with what does not apply, and why",
        "fail-on": "exit code 1 for findings of this severity or worse: critical, high, medium, "
        "low, any",
        "json": "print all findings as JSON",
    },
    example="scan torch-cu130:sm120 --fail-on high",
)
def scan(
    c: Context,
    image: str,
    lock: bool = False,
    db: str = "",
    report: str = "",
    vex: str = "security/vex.json",
    fail_on: str = "critical",
    json: bool = False,
) -> None:
    """Look the packages of an image up in databases of security advisories."""
    import datetime as dt
    from dataclasses import asdict
    from pathlib import Path

    from torch_images.config.matrix import ImageSpec
    from torch_images.errors import UsageError, VerifyError, suggest
    from torch_images.host.runner import Runner
    from torch_images.locks.image_lock import image_lock
    from torch_images.verify import advisories
    from torch_images.verify.identify import identify
    from torch_images.verify.sbom import read
    from torch_images.verify.scan import Scan, lock_bill
    from torch_images.verify.scan import scan as look_up
    from torch_images.verify.vex import read_statements

    if fail_on not in advisories.FAIL_ON:
        hint = suggest(fail_on, advisories.FAIL_ON)
        raise UsageError(f"--fail-on '{fail_on}' is not a severity", hint)
    config, workspace = verb.config(), verb.workspace()
    statements = read_statements(verb.ROOT / vex, dt.datetime.now(dt.UTC).date())
    if report:
        path = Path(report)
        if not path.is_file():
            raise UsageError(f"--report {report} is not a file", "name one that a scanner wrote")
        findings = advisories.read_report(path.read_text(encoding="utf-8", errors="replace"))
        result = Scan(findings=tuple(findings), unasked=())
    else:
        if lock:
            spec = ImageSpec.parse(image, config)
            bill = lock_bill(spec.id, image_lock(config, spec, workspace.locks))
        else:
            engine = verb.engine()
            bill = read(identify(config, image, workspace, engine)[0], engine)
        folder = Path(db).absolute() if db else None
        result = look_up(bill, folder, workspace, Runner(), verb.say)
    findings = advisories.state(result.findings, statements)
    new = advisories.failing(findings, fail_on)
    if json:
        document = {"findings": [asdict(f) for f in findings], "unasked": list(result.unasked)}
        print(verb.as_json(document))
    else:
        for finding in findings:
            print(advisories.line(finding))
        for package in result.unasked:
            verb.say(f"not looked up: {package}")
        verb.say(
            f"{len(findings)} findings, {sum(bool(f.status) for f in findings)} with a statement"
        )
    if new:
        raise VerifyError(
            f"{image}: {len(new)} findings are {fail_on if fail_on != advisories.ANY else 'there'}"
            f"{' or worse' if fail_on not in ('critical', advisories.ANY) else ''} and have no "
            "statement",
            f"take newer packages (`invoke lock`), or say in {vex} why they do not matter",
        )


@verb.verb(
    help={"json": "print all that was found as JSON"},
    example="doctor --json",
)
def doctor(c: Context, json: bool = False) -> None:
    """Say whether containers get GPUs on this machine, and what to do if not; changes nothing."""
    from torch_images.cli.doctor import diagnose, document, text
    from torch_images.errors import EngineError
    from torch_images.host.connection import connect
    from torch_images.host.gpu_facts import EngineGpus, engine_gpus, machine

    try:
        engine: EngineGpus | EngineError = engine_gpus(connect())  # it sets none up
    except EngineError as error:
        engine = error
    found = diagnose(machine(), engine)
    print(verb.as_json(document(found)) if json else text(found))
    if not found.works:
        raise Exit(code=1)
