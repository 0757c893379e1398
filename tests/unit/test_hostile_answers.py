"""What registries, indexes, services and caches may say: an answer, or one line that names it."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.loopback import serving
from tests.unit.hostile import WORDS, altered_lines, ends_well, json_texts
from torch_images.errors import NetworkError
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host.network import Network
from torch_images.locks.wheels import LockedWheel

HEX = "0" * 64
within = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


# --- services -------------------------------------------------------------------------------------


class Service:
    """A server that answers every request with what it is told to."""

    def __init__(self) -> None:
        self.url, self.status, self.body = "", 200, b""
        self.headers: dict[str, str] = {}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    server = Service()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = server.body
            self.send_response(server.status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as url:
        server.url = url
        yield server


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
def test_index_page_of_any_content_is_read_or_refused(
    service: Service, tmp_path: Path, page: tuple[str, str]
) -> None:
    service.status, service.headers = 200, {"Content-Type": page[1]}
    service.body = page[0].encode(
        "utf-8", "surrogateescape" if "\ud800" not in page[0] else "replace"
    )
    with PackageIndex(Network(index=f"{service.url}/simple/")) as index:
        ends_well(lambda: index.find(WHEEL))
        ends_well(lambda: index.fetch(WHEEL, tmp_path))
    assert not list(tmp_path.iterdir())


def test_package_index_refuses_other_content(service: Service) -> None:
    service.status, service.body = 200, b"<html>"
    for kind, problem in (
        ("image/png", "unsupported Content-Type"),
        ("application/vnd.pypi.simple.v1+json", ""),
    ):
        service.headers = {"Content-Type": kind}
        with (
            PackageIndex(Network(index=f"{service.url}/simple/")) as index,
            pytest.raises(
                NetworkError, match="the package index's page of a could not be read: "
            ) as caught,
        ):
            index.find(WHEEL)
        assert problem in str(caught.value)
