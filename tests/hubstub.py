"""A hub on 127.0.0.1 for tests: data set repositories from memory, with the failures that users meet.

It answers what `huggingface_hub` and `datasets` ask of the real one: repository facts, trees, paths, files with ranges.
With `redirect` a file is served as from a CDN: the hub's answer carries the commit and points to another host (the same
machine by another name), whose answer carries none, and which refuses a request that brings the hub's token along. The failures are attributes, changed while it runs; `requests` lists what came.
"""

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PIECE = 1 << 16


@dataclass
class Repo:
    """One data set at one commit: path -> content. Files named in `plain` lie in git itself, as small ones may."""

    files: dict[str, bytes]
    commit: str
    plain: tuple[str, ...] = ()

    def entry(self, path: str) -> dict[str, Any]:
        size, sha256 = len(self.files[path]), hashlib.sha256(self.files[path]).hexdigest()
        if path in self.plain:
            blob = hashlib.sha1(f"blob {size}\0".encode() + self.files[path]).hexdigest()
            return {"type": "file", "size": size, "path": path, "rfilename": path, "oid": blob, "blobId": blob}
        lfs = {"oid": sha256, "sha256": sha256, "size": size, "pointerSize": 134}
        names = {"path": path, "rfilename": path, "oid": sha256[:40], "blobId": sha256[:40]}
        return {"type": "file", "size": size, "lfs": lfs, **names}


@dataclass
class Hub:
    """Serves `repos` (by id) while used in a with block; `url` is its endpoint."""

    repos: dict[str, Repo]
    token: str = ""  # when set, files are gated: only this token may read them
    redirect: bool = False
    status: int = 0  # answer everything with this status ...
    status_after: int = 0  # ... after so many requests
    cut: int = 0  # end each transfer after so many bytes
    delay: float = 0.0  # seconds before each answer
    pace: float = 0.0  # seconds after each piece of a file
    short: int = 0  # serve files without their last bytes, as if they were like that
    commit_header: str = ""  # send this instead of the commit
    ranges: bool = True  # without, every transfer starts at the first byte, whatever is asked for
    html: bool = False  # answer repository facts with a web page, as a hotel's network does
    flip: bool = False  # serve files with their first byte changed
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def bytes_of(self, path: str) -> bytes:
        """A file as this hub serves it now, found by its path or its sha256."""
        for repo in self.repos.values():
            for name, data in repo.files.items():
                if path in (name, hashlib.sha256(data).hexdigest()):
                    data = data[: len(data) - self.short]
                    return bytes([data[0] ^ 1]) + data[1:] if self.flip else data
        raise KeyError(path)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: without this each answer waits 40 ms
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True  # the client went away, as it does when it is killed

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
        time.sleep(hub.delay)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if hub.status and len(hub.requests) > hub.status_after:
            headers = {"Retry-After": "17"} if hub.status == 429 else {}
            return self._send(hub.status, {"error": "out of order"}, headers)
        return self._route(unquote(url.path), parse_qs(url.query), body)

    do_HEAD = do_POST = do_GET

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if match := re.fullmatch("/cdn/([0-9a-f]{64})", path):
            if "Authorization" in self.headers:
                return self._refuse(400, "InvalidArgument")
            return self._file(self.hub.bytes_of(match[1]), {})
        match = re.fullmatch(
            r"/(?:api/)?datasets/([^/]+/[^/]+)(?:/(revision|tree|paths-info|resolve)/([^/]+)(.*))?", path
        )
        if not match:
            return self._refuse(404, "NotFound")
        name, action, revision, rest = match[1], match[2], match[3], (match[4] or "").strip("/")
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._refuse(401, "RepoNotFound")
        if revision != repo.commit:
            return self._refuse(404, "RevisionNotFound")
        if action == "resolve":
            return self._resolve(repo, rest)
        if action == "tree":
            return self._send(200, [repo.entry(path) for path in repo.files])
        if action == "paths-info":
            asked = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
            return self._send(200, [repo.entry(path) for path in asked if path in repo.files])
        return self._facts(name, repo)

    def _facts(self, name: str, repo: Repo) -> None:
        if self.hub.html:
            return self._send(200, b"<html>Welcome to the hotel</html>")
        siblings = [repo.entry(path) for path in repo.files]
        return self._send(200, {"id": name, "sha": repo.commit, "siblings": siblings, "private": False, "tags": []})

    def _resolve(self, repo: Repo, path: str) -> None:
        sent = self.headers.get("Authorization", "")
        if self.hub.token and sent != f"Bearer {self.hub.token}":
            return self._refuse(403 if sent else 401, "GatedRepo")
        if path not in repo.files:
            return self._refuse(404, "EntryNotFound")
        sha256 = hashlib.sha256(repo.files[path]).hexdigest()
        headers = {"X-Repo-Commit": self.hub.commit_header or repo.commit, "ETag": f'"{sha256}"'}
        if self.hub.redirect:
            port = self.server.server_address[1]
            return self._send(302, b"", {**headers, "Location": f"http://localhost:{port}/cdn/{sha256}"})
        return self._file(self.hub.bytes_of(path), headers)

    def _file(self, data: bytes, headers: dict[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.hub.ranges else None
        first = int(match[1]) if match else 0
        last = min(int(match[2]), len(data) - 1) if match and match[2] else len(data) - 1
        if match and first >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        span = {"Content-Range": f"bytes {first}-{last}/{len(data)}"} if match else {}
        part = data[first : last + 1]
        self._head(206 if match else 200, len(part), {**headers, **span, "Accept-Ranges": "bytes"})
        if self.command == "HEAD":
            return None
        if self.hub.cut and self.hub.cut < len(part):
            self.close_connection = True
            part = part[: self.hub.cut]
        for start in range(0, len(part), PIECE):
            self.wfile.write(part[start : start + PIECE])
            time.sleep(self.hub.pace)
        return None

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"error": code}, {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._head(status, len(data), {"Content-Type": "application/json", **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
