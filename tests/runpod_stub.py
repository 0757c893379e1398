"""A stand-in of RunPod's API on loopback: templates and registry credentials of one account.

It checks bodies by the documented schema, and words refusals as the API does:
https://github.com/runpod/runpod-plugins-official/blob/main/plugins/runpod/skills/runpod-migrate/reference/breaking-changes.md
"""

from __future__ import annotations

import contextlib
import http.server
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from torch_images.host.loopback import serving

KEY = "rpa_TESTKEY"
_SCHEMA = json.loads((Path(__file__).parent / "fixtures" / "runpod-template.json").read_text())


@dataclass
class Account:
    """What the account has, what was asked for, and answers to give before the real ones."""

    url: str = ""
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)
    registries: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for one account."""

    account: Account

    def answer(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        kind = "application/json" if status < 400 else "application/problem+json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def problem(self, status: int, detail: str, *errors: str) -> None:
        document: dict[str, Any] = {"title": "Problem", "status": status, "detail": detail}
        self.answer(status, document | ({"errors": list(errors)} if errors else {}))

    def handle_any(self) -> None:
        self.account.asked.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(length) or b"null")
        path, _, query = self.path.partition("?")
        identifier = path.rpartition("/")[2]
        if path.startswith("/v1/"):
            self.problem(410, "REST API v1 is retired")
        elif self.account.failures:
            self.problem(self.account.failures.pop(0), "as the test wants it")
        elif self.headers.get("Authorization") != f"Bearer {KEY}":
            self.problem(401, "missing bearer token")
        elif self.command == "GET" and path in ("/v2/templates", "/v2/registries"):
            entries: dict[str, dict[str, Any]] = getattr(self.account, identifier)
            names = sorted(entries)
            at = int(query.partition("=")[2] or 0)
            more = {"nextCursor": str(at + 1)} if at + 1 < len(names) else {}
            page = [entries[name] for name in names[at : at + 1]]
            self.answer(200, {identifier: page, "pagination": more})
        else:
            self.write(sent, path, identifier)

    def write(self, sent: Any, path: str, identifier: str) -> None:
        required = ["name", "image"] if self.command == "POST" else []
        checker = jsonschema.Draft202012Validator({**_SCHEMA, "required": required})
        if wrong := [_said(error) for error in checker.iter_errors(sent)]:
            self.problem(422, "Request validation failed.", *wrong)
        elif self.command == "POST" and path == "/v2/templates":
            if any(t["name"] == sent["name"] for t in self.account.templates.values()):
                self.problem(422, "Template name must be unique.")
                return
            new = f"tpl_{len(self.account.templates)}"
            self.account.templates[new] = {"registry": None, **sent, "id": new}
            self.answer(201, self.account.templates[new])
        elif self.command == "PATCH" and identifier in self.account.templates:
            self.account.templates[identifier] |= sent
            self.answer(200, self.account.templates[identifier])
        else:
            self.problem(404, "resource not found")

    def do_GET(self) -> None:
        self.handle_any()

    def do_POST(self) -> None:
        self.handle_any()

    def do_PATCH(self) -> None:
        self.handle_any()

    def log_message(self, *_: object) -> None:
        """Keep requests out of the output of tests."""


def _said(error: jsonschema.ValidationError) -> str:
    """A failure in the API's words: "$: additional properties 'readme' not allowed"."""
    if error.validator == "additionalProperties":
        sent: Any = error.instance
        schema: Any = error.schema
        names = ", ".join(f"'{name}'" for name in sorted(set(sent) - set(schema["properties"])))
        return f"{error.json_path}: additional properties {names} not allowed"
    return f"{error.json_path}: {error.message}"


@contextlib.contextmanager
def runpod() -> Iterator[Account]:
    """Serve an empty account: /v2, with a page for each template, and /v1, which is retired."""
    account = Account()

    with serving(type("Bound", (Handler,), {"account": account})) as url:
        account.url = url
        yield account
