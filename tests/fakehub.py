"""A hub on this machine: the few addresses that the hub's clients ask for, answered from folders."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """A hub that serves `models` and `datasets` (name → folder), and notes what it was asked for."""

    models: dict[str, Path] = field(default_factory=dict)
    datasets: dict[str, Path] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def repository(self, kind: str, name: str) -> Path | None:
        return (self.datasets if kind == "datasets" else self.models).get(name)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub on a free port of this machine; its `endpoint` says where."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Say nothing on stderr."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode() if length else ""
        address = urlsplit(self.path)
        self.served.asked.append(f"{self.command} {address.path}")
        parts = [unquote(part) for part in address.path.split("/") if part]
        if not parts:
            self._send(b"a hub")
        elif parts[0] == "api":
            self._about(parts[1:], body)
        else:
            self._file(parts)

    def _about(self, parts: list[str], body: str) -> None:
        kind, name, rest = parts[0], "/".join(parts[1:3]), parts[3:]
        folder = self.served.repository(kind, name)
        if folder is None:
            self._refuse(401, "RepoNotFound")
        elif not rest or rest[0] == "revision":
            files = [{"rfilename": path.relative_to(folder).as_posix()} for path in _files(folder)]
            self._tell({"_id": "1", "id": name, "sha": COMMIT, "siblings": files, "private": False, "tags": []})
        elif rest[0] == "tree":
            below = "/".join(rest[2:])
            self._tell([entry for entry in _entries(folder) if entry["path"].startswith(below)])
        elif rest[0] == "paths-info":
            wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
            self._tell([entry for entry in _entries(folder) if entry["path"] in wanted])
        else:
            self._refuse(404, "EntryNotFound")

    def _file(self, parts: list[str]) -> None:
        kind = parts[0] if parts[0] == "datasets" else "models"
        parts = parts[1:] if kind == "datasets" else parts
        at = parts.index("resolve") if "resolve" in parts else len(parts)
        folder = self.served.repository(kind, "/".join(parts[:at]))
        if folder is None:
            self._refuse(401, "RepoNotFound")
            return
        path = folder.joinpath(*parts[at + 2 :])
        if path.is_file():
            self._send(path.read_bytes(), **{"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(path)}"'})
        else:
            self._refuse(404, "EntryNotFound", **{"X-Repo-Commit": COMMIT})

    def _tell(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _refuse(self, code: int, why: str, **headers: str) -> None:
        self._send(json.dumps({"error": why}).encode(), code, **{"X-Error-Code": why, **headers})

    def _send(self, content: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _entries(folder: Path) -> list[dict[str, Any]]:
    """Return folders and files as the hub lists them."""
    folders = [path for path in folder.rglob("*") if path.is_dir()]
    found = [{"type": "directory", "path": path.relative_to(folder).as_posix(), "oid": COMMIT} for path in folders]
    return found + [
        {"type": "file", "path": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "oid": _digest(path)}
        for path in _files(folder)
    ]


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
