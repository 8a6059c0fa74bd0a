"""The HTTP side of the dashboard: the page and one question, GET only, on loopback unless told otherwise.

No path of a request ever becomes a path on disk. The page's own script and style are allowed by their hashes and
nothing else is, so that text of a model cannot run. A name in the Host header that is not ours is refused: a foreign
web page could otherwise read the answers by pointing its own name at this machine.
"""

import asyncio
import base64
import errno
import hashlib
import ipaddress
import json
import re
import secrets
import socket
import threading
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from andrea.dashboard.view import Asked, view
from andrea.dashboard.watch import Watch
from andrea.errors import ServeError
from andrea.terminal import tell

PAGE = Path(__file__).resolve().parent.parent.parent / "scripts" / "live-loss-dashboard.html"
FIRST_PORT, PORTS = 8765, 100
PATIENCE = 10.0  # seconds that a new connection may take to ask
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LIMITS = {"first": 2**53, "last": 2**53, "bins": 4000, "smooth": 2**53}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(watch: Watch, host: str, port: int) -> None:
    """Listen until Ctrl-C. Port 0 is the next free one from FIRST_PORT on. ServeError when it cannot be had."""
    page = _read_page()
    watch.refresh()
    while not watch.complete:
        watch.refresh()
    listening = bind(host, port)
    address = listening.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    tell(f"dashboard of {watch.folder}: http://{shown}:{address[1]}/   (Ctrl-C ends it)")
    if not _is_loopback(address[0]):
        print("whoever reaches this address can read the run: there is no password", flush=True)
    config = uvicorn.Config(
        make_app(watch, page, host),
        loop="asyncio",
        http=Impatient,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])


def make_app(watch: Watch, page: str, host: str) -> ASGIApp:
    """The application: `/` and `/api/view`."""
    lock, life = threading.Lock(), secrets.token_hex(4)

    def answer(asked: Asked, since: str) -> bytes:
        with lock:
            watch.refresh()
            token = f"{life}.{watch.version}"
            seen = {"token": token, "same": True} if token == since else {"token": token, **view(watch, asked)}
        return json.dumps(seen, allow_nan=False, separators=(",", ":")).encode()

    async def show_page(_: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy(page)})

    async def show_view(request: Request) -> Response:
        values = {name: request.query_params.get(name, str(getattr(Asked, name))) for name in _LIMITS}
        for name, value in values.items():
            if not re.fullmatch(r"[0-9]{1,16}", value) or int(value) > _LIMITS[name]:
                must = f"{name} must be a whole number from 0 to {_LIMITS[name]}"
                return PlainTextResponse(f"{must}\n", 400)
        asked = Asked(**{name: int(value) for name, value in values.items()})
        data = await run_in_threadpool(answer, asked, request.query_params.get("since", ""))
        return Response(data, media_type="application/json")

    return Guard(Starlette(routes=[Route("/", show_page), Route("/api/view", show_view)]), host)


class Impatient(H11Protocol):
    """Closes a connection that takes longer than PATIENCE to ask; uvicorn would hold it, and its file, for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_question()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle and self.cycle.response_complete:  # so these are the first bytes of another question
            self._await_question()

    def _await_question(self) -> None:
        self.loop.call_later(PATIENCE, self._close_silent, self.cycle)

    def _close_silent(self, last: object) -> None:
        if self.cycle is last:
            self.transport.close()


class Guard:
    """Lets through what is a GET for a name of ours, and puts the same careful headers on every answer."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        name = dict(scope["headers"]).get(b"host", b"").decode("latin-1")

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(key.lower().encode(), value.encode()) for key, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        app = self.app
        if not is_ours(name, self.host):
            app = PlainTextResponse("this name is not the dashboard's: use the address that it printed\n", 403)
        elif scope["method"] != "GET":
            app = PlainTextResponse("only GET\n", 405, {"Allow": "GET"})
        await app(scope, receive, send_safely)


def is_ours(header: str, host: str) -> bool:
    """Whether a Host header names this server, which listens on `host`.

    Beyond loopback also by the machine's own name, and by any address: an address cannot be pointed elsewhere.
    """
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?", header)
    if match is None:
        return False
    name = match[1].strip("[]").rstrip(".").lower()
    if name in _LOOPBACK:
        return True
    if _is_loopback(host):
        return False
    return name in (host.lower(), socket.gethostname().lower()) or _address(name) is not None


def policy(page: str) -> str:
    """Content-Security-Policy that allows the script and style that stand in `page`, and questions to this server."""
    hashes = {tag: _hashes(page, tag) for tag in ("script", "style")}
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(page: str, tag: str) -> str:
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. ServeError when host or port cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as cause:
        raise _refusal(host, port, cause) from cause
    for candidate in [port] if port else range(FIRST_PORT, FIRST_PORT + PORTS):
        listening = socket.socket(family, kind, protocol)  # asyncio sends at once only where the protocol says TCP
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address[0], candidate, *address[2:]))
            listening.listen(128)
            return listening
        except OSError as cause:
            listening.close()
            if cause.errno != errno.EADDRINUSE or candidate == port:
                raise _refusal(host, candidate, cause) from cause
    raise _refusal(host, FIRST_PORT, f"{PORTS} ports from there on are all in use")


def _refusal(host: str, port: int, got: object) -> ServeError:
    reason = getattr(got, "strerror", None) or got
    return ServeError(
        f"the dashboard must be able to listen on {host}, port {port}",
        got=reason,
        fix="leave --port out to get the next free one, and --host to stay on this machine",
    )


def _read_page() -> str:
    try:
        return PAGE.read_text(encoding="utf-8")
    except OSError as cause:
        raise ServeError(
            f"the page must lie at {PAGE}", got=cause.strerror, fix="run from a checkout: pip install --editable ."
        ) from cause


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
