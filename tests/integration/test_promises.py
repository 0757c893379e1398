"""Breaking a promise on purpose makes verification fail by the name of that promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support import DEFAULT, SITE, Built, invoke
from torch_images.build.job import Job
from torch_images.build.plan import ImagePlan, plan_images
from torch_images.config.choose import choose
from torch_images.config.types import Config
from torch_images.host.engine import Engine
from torch_images.host.runner import Runner
from torch_images.host.workspace import Workspace
from torch_images.verify.suites import Subject, inside, outside
from torch_images.verify.verify import VerifyReport, claim, report_path, verify

BROKEN = "torch-images-test:broken"

# A module of a wheel and one of Debian, which nothing here imports.
SANDBOX = f"{SITE}/jinja2/sandbox.py"
ZEN = "/usr/lib/python3.13/this.py"

# Each step breaks one promise; the check that must name it stands beside.
BREAKAGES = {
    f"RUN sed -i 's/^Version: .*/Version: 1.0/' {SITE}/sympy-*.dist-info/METADATA": (
        "container/test_versions/test_packages_are_the_locked_ones"
    ),
    "RUN echo >>/usr/share/torch-images/lock/tools-build.json": (
        "image/test_inputs/test_carries_its_locks"
    ),
    "RUN sed -i '/^Package: tini$/,/^$/s/^Version: .*/Version: 9/' /var/lib/dpkg/status": (
        "image/test_inputs/test_has_the_locked_debian_packages"
    ),
    "RUN sed -i 's/\"specVersion\": \"1.6\"/\"specVersion\": 9/' /usr/share/torch-images/cyclonedx.json": (
        "image/test_inputs/test_bill_of_materials_is_valid"
    ),
    "RUN sed -i 's/\"name\": \"sympy\"/\"name\": \"sympa\"/' /usr/share/torch-images/cyclonedx.json": (
        "image/test_inputs/test_bill_of_materials_lists_everything"
    ),
    "RUN mkdir -p /opt/cuda-compat/99.0": (
        "image/test_compat/test_nothing_is_there_without_the_claim"
    ),
    "RUN mkdir -p /usr/local/cuda/compat": (
        "image/test_compat/test_nothing_is_where_the_container_toolkit_acts"
    ),
    "RUN echo /opt/cuda-compat/13.0 >/etc/ld.so.conf.d/compat.conf": (
        "image/test_compat/test_no_loader_path_is_baked_in"
    ),
    "RUN rm -r /usr/local/lib/torch-images/__pycache__": (
        "image/test_compat/test_start_has_bytecode"
    ),
    f"RUN cd {SITE}/_torch_images && rm -r __pycache__ && sed -i 's/PROFILE: True/PROFILE: False/' switches.py": (
        "container/test_start/test_profile_is_in_force"
    ),
    # Without machine code. The image below has the library that an earlier verification has listed.
    f"RUN cd {SITE}/torch/lib && cp libc10.so libtorch_cuda_linalg.so": (
        "container/test_arch/test_machine_code_serves[12.0-libtorch_cuda_linalg.so]"
    ),
    "RUN echo 'raise SystemExit(3)' >>/usr/local/lib/torch-images/effect.py": (
        "image/test_start/test_start_says_what_it_chose"
    ),
    f"RUN sed -i '1s/sandbox/sandbax/' {SANDBOX}": (
        "image/test_files/test_wheels_files_are_what_their_records_say"
    ),
    f"RUN sed -i '1s/Gur/Gue/' {ZEN}": "image/test_files/test_debian_files_are_what_dpkg_says",
    "RUN cd /usr/lib/python3.13/__pycache__ && cp this.*.pyc antigravity.cpython-313.pyc": (
        "image/test_files/test_bytecode_is_of_the_sources"
    ),
    "RUN touch /usr/local/bin/stray": "image/test_files/test_every_file_is_accounted_for",
    "RUN chmod 777 /workspace": "image/test_files/test_nothing_is_world_writable",
    "RUN chown 70000 /usr/local/bin/torch-info": (
        "image/test_files/test_owners_fit_user_namespaces"
    ),
    "RUN mkdir -p /root/.cache/pip && touch /root/.cache/pip/x": (
        "image/test_files/test_no_caches_or_logs"
    ),
    "RUN cat /etc/ssl/certs/ca-certificates.crt >/tmp/c && cat /tmp/c >>/etc/ssl/certs/ca-certificates.crt": (
        "image/test_files/test_trusts_only_debians_certificates"
    ),
    "RUN useradd --shell /bin/bash intruder": "image/test_system/test_no_other_login",
    "RUN chmod -x /usr/bin/x86_64-linux-gnu-g++-14": "image/test_system/test_compiler_works",
    "LABEL io.github.torch-images.cuda=12.8": (
        "image/test_metadata/test_label[io.github.torch-images.cuda]"
    ),
    "LABEL extra=1": "image/test_metadata/test_no_other_label",
    "ENV HTTPS_PROXY=http://proxy": "image/test_metadata/test_environment",
    'ENTRYPOINT ["/usr/bin/tini", "--"]': "image/test_metadata/test_entrypoint",
    "USER 1000": "image/test_metadata/test_starts_as_root_without_volumes",
    "EXPOSE 80": "image/test_metadata/test_ports",
    "WORKDIR /srv": "image/test_metadata/test_folder",
}  # fmt: skip


@pytest.fixture(scope="module")
def planned(config: Config, workspace: Workspace) -> ImagePlan:
    [image] = plan_images(config, [choose(config)], workspace.root, workspace.locks)
    return image


@pytest.fixture(scope="module")
def broken(
    built: Built,
    config: Config,
    planned: ImagePlan,
    workspace: Workspace,
    engine: Engine,
    runner: Runner,
) -> Iterator[VerifyReport]:
    """The report of an image in which every promise of BREAKAGES is broken."""
    recipe = "\n".join([f"FROM {built.tags[0]}", *BREAKAGES])
    command = ["docker", "buildx", "build", "--provenance=false", "--tag", BROKEN, "-"]
    runner.run(command, stdin=recipe)
    job = Job(config=config, workspace=workspace, engine=engine, run=runner)
    yield verify(job, BROKEN, planned)
    report_path(workspace, engine.inspect(BROKEN).id).unlink()
    engine.untag(BROKEN)


@pytest.mark.parametrize("check", BREAKAGES.values())
def test_verify_names_a_broken_promise(broken: VerifyReport, check: str) -> None:
    assert check in {failure.name for failure in broken.failed}


@pytest.mark.parametrize("path", [SANDBOX, ZEN])
def test_verify_names_a_changed_file(broken: VerifyReport, path: str) -> None:
    """Its size and path are as they were."""
    names = ("wheels_files_are_what_their_records_say", "debian_files_are_what_dpkg_says")
    failed = [c.message for c in broken.failed if c.name.endswith(names)]
    assert len(failed) == 2
    assert any(f"{path} has other content" in message for message in failed)


def test_verify_passes_unbroken_checks(broken: VerifyReport) -> None:
    passed = {check.name for check in broken.checks if check.outcome == "passed"}
    assert "container/test_versions/test_torch_version" in passed
    assert "container/test_arch/test_machine_code_serves[12.0-libtorch_cuda.so]" in passed


def test_verify_names_a_missing_architecture_and_cuda(
    narrow: Built, config: Config, workspace: Workspace, engine: Engine, runner: Runner
) -> None:
    """An image of CUDA 13.0 for 9.0, taken for one of CUDA 13.2 for 12.0."""
    spec = choose(config, cuda="13.2", arch="12.0")
    [wrong] = plan_images(config, [spec], workspace.root, workspace.locks)
    info = engine.inspect(narrow.digest)
    modules = ("test_arch", "test_versions", "test_features")
    claimed = claim(config, wrong)
    claimed["features"] = [*claimed["features"], "fbgemm-genai"]
    job = Job(config=config, workspace=workspace, engine=engine, run=runner)
    subject = Subject(job=job, info=info, claim=claimed)
    checks = inside(subject, "container", [f"{name}.py" for name in modules]).checks
    checks += outside(subject, ["test_metadata.py"]).checks
    failed = {check.name for check in checks if check.outcome == "failed"}
    assert failed >= {
        "container/test_arch/test_arch_flags_serve[12.0]",
        "container/test_arch/test_machine_code_serves[12.0-libtorch_cuda.so]",
        "container/test_arch/test_machine_code_serves[12.0-libtorch_cuda_linalg.so]",
        "container/test_versions/test_cuda_version",
        "container/test_versions/test_torch_version",
        "container/test_versions/test_packages_are_the_locked_ones",
        "container/test_features/test_feature[fbgemm-genai]",
        "image/test_metadata/test_label[io.github.torch-images.arches]",
    }
    assert {check.name.rpartition("/")[0] for check in checks} == {
        *(f"container/{name}" for name in modules),
        "image/test_metadata",
    }


def test_build_tags_no_failed_image(
    built: Built, engine: Engine, project: Callable[..., Path]
) -> None:
    before = engine.tags("torch-cu130:")
    install = "scripts/image/finish/install-files"
    folder = project(
        (install, "install -d /usr/local/bin", "touch /usr/local/stray\ninstall -d /usr/local/bin")
    )
    done = invoke("build", cwd=folder)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"error: {DEFAULT} failed verification: ")
    assert "image/test_files/test_every_file_is_accounted_for" in last
    assert engine.tags("torch-cu130:") == before
    assert engine.inspect("torch-cu130:latest").id == built.digest
    candidate = f"torch-images-candidate:{DEFAULT}"
    assert engine.tags(candidate)
    engine.untag(candidate)
