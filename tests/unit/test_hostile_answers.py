"""What registries, indexes, services and caches may say: an answer, or one line that names it."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import tarfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import docker
from tests.unit.fakes import FakeRunner
from tests.unit.hostile import WORDS, altered_lines, ends_well, json_texts
from torch_images.bench import results
from torch_images.build.build import _digests
from torch_images.errors import BuildError, EngineError, NetworkError, TorchImagesError
from torch_images.fetch.download import fetch_archives
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host import connection, tars
from torch_images.host.engine import Engine
from torch_images.host.image_info import ListedImage
from torch_images.host.loopback import serving
from torch_images.host.network import Network
from torch_images.jsondoc import MalformedError, member, optional, parse
from torch_images.locks.sources import LockedArchive
from torch_images.locks.wheels import LockedWheel
from torch_images.oci import layout as oci
from torch_images.oci.diff import compare
from torch_images.verify import listings
from torch_images.verify.verify import read_report

HEX = "0" * 64
within = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def test_a_member_is_named_by_its_path() -> None:
    document = {"a": [{"b": True}]}
    assert member(document, "a", 0, "b", kind=bool)
    with pytest.raises(MalformedError, match=r"^'a\[0\]\.b' is not a number$"):
        member(document, "a", 0, "b", kind=int)
    with pytest.raises(MalformedError, match=r"^'a\[1\]' is missing$"):
        member(document, "a", 1, kind=dict)
    with pytest.raises(MalformedError, match=r"^'it' is not a list$"):
        member(document, kind=list)
    assert optional({"a": None}, "a", kind=str) == ""


def blobs(text: str, _path: Path) -> object:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        member = tarfile.TarInfo(f"blobs/sha256/{HEX}")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    return tars.json_blobs([tar.getvalue()]) or None


def in_file(read: Callable[[Path], object]) -> Callable[[str, Path], object]:
    def held(text: str, path: Path) -> object:
        path.write_text(text)
        return read(path)

    return held


@pytest.mark.parametrize("depth", [101, 900, 100_000])
@pytest.mark.parametrize(
    "read",
    [
        lambda text, _: connection.current(FakeRunner({"docker context": (0, text)})),
        blobs,
        in_file(read_report),
        in_file(listings._read),
        in_file(results.read),
    ],
)
def test_deep_json_is_no_traceback(
    read: Callable[[str, Path], object], depth: int, tmp_path: Path
) -> None:
    """Nor where it can be read, but not be walked through, or be written again."""
    for start, end in (("[", "]"), ('{"schema":', "}")):
        text = f"{start * depth}1{end * depth}"
        with pytest.raises(MalformedError, match="it is nested too deeply"):
            parse(text)
        with contextlib.suppress(TorchImagesError):
            assert read(text, tmp_path / "x.json") is None
    assert parse("[" * 99 + "1" + "]" * 99)


# --- buildx ---------------------------------------------------------------------------------------


@given(json_texts({"a": {"containerimage.digest": f"sha256:{HEX}"}}))
def test_whatever_buildx_writes_of_a_build(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "metadata.json"
    path.write_text(text)
    found = ends_well(lambda: _digests(path, ["a"]))
    assert found is None or isinstance(found["a"], str)
    path.unlink()
    with pytest.raises(EngineError, match="buildx wrote no usable metadata of the build"):
        _digests(path, ["a"])


# --- engines --------------------------------------------------------------------------------------

DIGEST = f"sha256:{HEX}"
ANSWERS: dict[str, Any] = {
    "/info": {
        "ID": "a",
        "Architecture": "x86_64",
        "NCPU": 2,
        "DockerRootDir": "/var/lib/docker",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    },
    "/version": {"Version": "26.1.5"},
    "/images/json": [{"Id": DIGEST, "RepoTags": ["a:1"], "Labels": {"l": "1"}}],
    "/images/a:1/json": {
        "Id": DIGEST,
        "Created": "2026-11-21T10:00:00Z",
        "Os": "linux",
        "Architecture": "amd64",
        "Config": {"Labels": {"l": "1"}},
        "RootFS": {"Layers": [DIGEST]},
        "Metadata": {"LastTagTime": "2026-11-21T10:00:00.123Z"},
    },
    "/images/a:1/history": [{"Size": 3}, {"Size": 4}],
    "/distribution/a:1/json": {"Descriptor": {"digest": DIGEST}},
    "/containers/json": [{"Id": "c", "ImageID": DIGEST}],
    "/containers/create": {"Id": "c"},
    "/containers/c/json": {"Id": "c", "Config": {"Tty": False}},
    "/containers/c/wait": {"StatusCode": 0},
}
LISTED = ListedImage(id="a:1", tags=(), labels={})
CALLS: dict[str, Callable[[Engine], object]] = {
    "id": Engine.id,
    "platform": Engine.platform,
    "processors": Engine.processors,
    "root": Engine.local_root,
    "store": Engine.uses_containerd,
    "version": Engine.version,
    "listed": Engine.listed,
    "tags": lambda engine: engine.tags("a"),
    "inspect": lambda engine: engine.inspect("a:1").labels.get("l"),
    "digest": lambda engine: engine.digest("a:1"),
    "sizes": lambda engine: engine.layer_sizes("a:1"),
    "looked into": lambda engine: engine.looked_into([LISTED]),
    "registry": lambda engine: engine.registry_digest("a:1"),
    "run": lambda engine: engine.run("a:1", "true"),
}


class Daemon(requests.adapters.BaseAdapter):
    """What answers docker-py: a text for each path, of which one may be anything."""

    def __init__(self, **changed: str) -> None:
        super().__init__()
        self.texts = {path: json.dumps(said) for path, said in ANSWERS.items()} | changed

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        answer = requests.Response()
        answer.status_code = 200
        path = urllib.parse.urlsplit(request.url or "").path.removeprefix("/v1.44")
        answer._content = self.texts.get(str(path), "").encode("utf-8", "surrogatepass")
        return answer

    def close(self) -> None:
        """Nothing is open."""


def told(**changed: str) -> Engine:
    client = docker.DockerClient(base_url="tcp://engine:1", version="1.44")
    client.api.mount("http://", Daemon(**changed))
    return Engine(client)


@pytest.mark.parametrize("call", CALLS)
def test_what_an_engine_should_say_is_understood(call: str) -> None:
    assert CALLS[call](told()) is not None or call == "root"


@given(st.data())
@pytest.mark.parametrize("call", CALLS)
def test_whatever_an_engine_says(call: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(ANSWERS)))
    text = data.draw(json_texts(ANSWERS[path]))
    ends_well(lambda: CALLS[call](told(**{path: text})))


@pytest.mark.parametrize(
    ("call", "path", "text", "problem"),
    [
        ("listed", "/images/json", "null", "'it' is not a list"),
        ("tags", "/images/json", '[{"Id": "a", "RepoTags": [null]}]', r"'\[0\]' is not text"),
        ("inspect", "/images/a:1/json", '{"Id": 7, "Config": {}}', "'Id' is not text"),
        ("sizes", "/images/a:1/history", '[{"Size": null}]', "'Size' is not a number"),
        ("run", "/containers/create", "[]", "TypeError"),
        ("run", "/containers/c/wait", '{"StatusCode": "0"}', "'StatusCode' is not a number"),
        ("version", "/version", "<html>", "Expecting value"),
    ],
)
def test_what_an_engine_should_not_say(call: str, path: str, text: str, problem: str) -> None:
    with pytest.raises(
        EngineError, match=f"^the engine sent an invalid answer: .*{problem}.*; check that"
    ):
        CALLS[call](told(**{path: text}))


@given(st.sampled_from(["pull", "load"]), json_texts({"id": "x", "error": "no"}))
def test_whatever_an_engine_says_of_its_progress(call: str, text: str) -> None:
    def events(*_: Any, **__: Any) -> Iterator[Any]:
        with contextlib.suppress(ValueError, RecursionError):  # docker-py's own are tested above
            yield json.loads(text)

    api = SimpleNamespace(pull=events, load_image=events)
    engine = Engine(cast("Any", SimpleNamespace(api=api)))
    calls = {
        "pull": lambda: engine.pull("a:1"),
        "load": lambda: engine.load([b""]),
    }
    ends_well(calls[call])


# --- layouts --------------------------------------------------------------------------------------


def layout(folder: Path) -> Path:
    """A layout of one small layer."""
    source = folder / "tree.tar"
    with tarfile.open(source, "w") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    made = folder / "layout"
    oci.write_layout(made, source, history="x")
    return made


def read_all(folder: Path) -> bool:
    oci.layout_digest(folder)
    oci.layout_layers(folder)
    return bool(oci.image(folder, []))


@pytest.mark.parametrize(
    "damage", ["missing", "folder", "cut", "[]", "{", "9" * 5000, "[" * 99_999]
)
@pytest.mark.parametrize("which", ["index.json", "manifest", "config"])
def test_a_damaged_layout_is_named(tmp_path: Path, which: str, damage: str) -> None:
    folder = layout(tmp_path)
    assert read_all(folder)
    path = folder / "index.json"
    manifest = folder / "blobs" / "sha256" / oci.layout_digest(folder).removeprefix("sha256:")
    if which == "manifest":
        path = manifest
    elif which == "config":
        path = manifest.with_name(json.loads(manifest.read_bytes())["config"]["digest"][7:])
    text = path.read_text()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_text(text[: len(text) // 2] if damage == "cut" else damage)
    with pytest.raises(
        BuildError, match=r"/layout is not an OCI layout: .*; remove it; it will be"
    ):
        read_all(folder)


# --- what docker save writes ----------------------------------------------------------------------


def tree(**fields: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as archive:
        made = tarfile.TarInfo("x")
        for name, value in fields.items():
            setattr(made, name, value)
        archive.addfile(made, io.BytesIO(bytes(made.size)))
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"", b"x" * 2000, tree(), tree(size=5000)[:1000]])
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.tar").write_bytes(content)
    with pytest.raises(EngineError, match=r"^one\.tar is not an image from `docker save`: "):
        compare(tmp_path / "one.tar", tmp_path / "one.tar")


# --- services -------------------------------------------------------------------------------------


class Service:
    """A server that answers every request with what it is told to."""

    def __init__(self) -> None:
        self.url, self.status, self.body = "", 200, b""
        self.headers: dict[str, str] = {}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    found = Service()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = found.body
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep requests out of the output of tests."""

    with serving(Handler) as url:
        found.url = url
        yield found


WHEEL = LockedWheel(name="a", version="1", filename="a-1-py3-none-any.whl", size=1, sha256=HEX)
HTML = f'<html><body><a href="a-1-py3-none-any.whl#sha256={HEX}">a-1-py3-none-any.whl</a></body>'
JSON_PAGE = {
    "meta": {"api-version": "1.0"},
    "name": "a",
    "files": [
        {"filename": WHEEL.filename, "url": "a-1-py3-none-any.whl", "hashes": {"sha256": HEX}}
    ],
}
HTML_PAGES = st.one_of(
    altered_lines(st.just(HTML.replace("<", "\n<").replace(" href", "\nhref"))),
    WORDS,
    WORDS.map(lambda w: f'<meta name="pypi:repository-version" content="{w}">{HTML}'),
    WORDS.map(lambda w: f'<a href="{w}">{WHEEL.filename}</a>'),
    WORDS.map(lambda w: f'<base href="{w}"><a href="{WHEEL.filename}#{w}">{WHEEL.filename}</a>'),
    WORDS.map(lambda w: f'<a href="x" data-yanked="{w}" data-requires-python="{w}">{w}</a>'),
)
TYPES = st.sampled_from(
    [
        *(
            "text/html",
            "application/vnd.pypi.simple.v1+json",
            "application/vnd.pypi.simple.v9+json",
        ),
        *("", "text/html; charset=none", "text/html; charset=utf-16", "application/json", "\xe4/x"),
    ]
)


@within
@pytest.mark.filterwarnings("ignore")
@given(
    st.tuples(HTML_PAGES, st.just("text/html"))
    | st.tuples(json_texts(JSON_PAGE), st.just("application/vnd.pypi.simple.v1+json"))
    | st.tuples(HTML_PAGES, TYPES)
)
def test_whatever_an_index_answers(service: Service, tmp_path: Path, page: tuple[str, str]) -> None:
    service.status, service.headers = 200, {"Content-Type": page[1]}
    service.body = page[0].encode(
        "utf-8", "surrogateescape" if "\ud800" not in page[0] else "replace"
    )
    with PackageIndex(Network(index=f"{service.url}/simple/")) as index:
        ends_well(lambda: index.find(WHEEL))
        ends_well(lambda: index.fetch(WHEEL, tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_page_that_is_none_is_named(service: Service) -> None:
    service.status, service.body = 200, b"<html>"
    for kind, problem in (
        ("image/png", "unsupported Content-Type"),
        ("application/vnd.pypi.simple.v1+json", ""),
    ):
        service.headers = {"Content-Type": kind}
        with (
            PackageIndex(Network(index=f"{service.url}/simple/")) as index,
            pytest.raises(
                NetworkError, match="the package index's page of a is malformed: "
            ) as caught,
        ):
            index.find(WHEEL)
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    "target",
    [
        "http://[",
        "http://[::1",
        "http://\u00e4\u0301..x",
        "file:///etc/passwd",
        "http://a:b:c/",
        "//",
        "\udcff",
    ],
)
def test_an_answer_that_sends_nowhere_is_one_line(
    service: Service, tmp_path: Path, target: str
) -> None:
    service.status, service.body = 302, b""
    service.headers = {"Location": target.encode("utf-8", "surrogateescape").decode("latin-1")}
    archive = LockedArchive(name="a", version="1", url=f"{service.url}/x", size=1, sha256=HEX)
    with pytest.raises(TorchImagesError) as caught:
        fetch_archives([archive], tmp_path, Network())
    assert len(str(caught.value).splitlines()) == 1
