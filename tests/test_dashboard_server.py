"""The dashboard's HTTP side: it serves one page and one question, to us alone, and it lasts."""

import gc
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from dashboard_kit import NAME, get, sample, served, start, steps, view, write_run, write_samples

from andrea.dashboard import server
from andrea.dashboard.server import PAGE, bind, is_ours
from andrea.errors import ServeError
from andrea.recordfile import RecordFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder of 50 of 60 steps."""
    folder = tmp_path / "runs" / NAME
    write_run(folder, steps(1, 50), start())
    return folder


def test_what_is_new_comes_and_what_is_known_does_not(folder: Path) -> None:
    """200 kB every two seconds for a run that stands still."""
    with served(folder) as port:
        first = view(port)
        assert json.loads(get(port, f"/api/view?since={first['token']}")[2]) == {"token": first["token"], "same": True}
        file = RecordFile(folder / f"{NAME}.loss.json")
        file.cut(50)
        file.append(steps(51, 55))
        file.flush()
        file.close()
        later = json.loads(get(port, f"/api/view?since={first['token']}")[2])
        assert later["facts"]["step"] == 55 and later["token"] != first["token"]


def test_only_the_page_and_the_question_are_served(folder: Path) -> None:
    """The folder beside the page holds everything that the user owns."""
    secret = folder / "secret.txt"
    secret.write_text("secret")
    with served(folder) as port:
        for path in (
            "/secret.txt",
            f"/../{secret.name}",
            f"/%2e%2e/{secret.name}",
            f"//{secret}",
            f"/api/view/..{secret}",
            "/api",
            "/docs",
        ):
            status, _, text = get(port, path)
            assert status == 404 and "secret" not in text
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"):
            assert get(port, method=method)[0] == 405
        for query in (
            "first=x",
            "last=-1",
            "bins=1e9",
            "bins=4001",
            "smooth=99999999999999999",
            "first=" + "9" * 5000,
            "first=%D9%A3",
        ):
            status, headers, text = get(port, f"/api/view?{query}")
            assert (
                status == 400 and "must be a whole number" in text and headers["content-type"].startswith("text/plain")
            )


def test_a_foreign_host_is_refused(folder: Path) -> None:
    """A web page elsewhere could point its own name at this machine and read the samples."""
    with served(folder) as port:
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "192.0.2.1",
            "",
            "[::1",
            "a b",
        ):
            status, _, text = get(port, Host=host)
            assert status in (400, 403) and "alpha" not in text, host
        for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", "[::1]:80", "localhost."):
            assert get(port, Host=host)[0] == 200, host


def test_beyond_loopback_names_are_still_checked() -> None:
    """--host 0.0.0.0 is for the people in the house, not for every name that leads here."""
    assert is_ours("192.0.2.7:8765", "0.0.0.0") and is_ours("[2001:db8::1]", "::")
    assert is_ours(socket.gethostname(), "0.0.0.0") and is_ours("box.lan", "box.lan")
    assert not is_ours("evil.example", "0.0.0.0") and not is_ours("evil.example", "192.0.2.7")
    assert not is_ours("192.0.2.7", "127.0.0.1") and not is_ours("192.0.2.7", "localhost")


def test_text_of_a_model_cannot_run(folder: Path) -> None:
    """A sample is whatever a model of the internet's text wrote."""
    hostile = "<script>alert(1)</script>\ud800\u2028"
    write_samples(folder, sample(20, hostile, prompt="<img src=x onerror=alert(1)>"))
    with served(folder) as port:
        status, headers, page = get(port, "/")
        assert view(port)["samples"][0]["texts"][0]["text"] == hostile
    assert status == 200 and page == PAGE.read_text()
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'" and "unsafe" not in headers["content-security-policy"]
    assert re.fullmatch(r"'sha256-[\w+/=]+'", rules["script-src"]) and headers["x-content-type-options"] == "nosniff"
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
        assert way not in page.replace("http://www.w3.org/2000/svg", ""), way


def test_a_port_in_use(folder: Path) -> None:
    """Two runs are watched at once: the second finds a port by itself; asked for a taken one, it says so."""
    with closing(bind("127.0.0.1", 0)) as first, closing(bind("127.0.0.1", 0)) as second:
        taken = first.getsockname()[1]
        assert second.getsockname()[1] != taken
        with pytest.raises(ServeError, match="must be able to listen"):
            bind("127.0.0.1", taken)
    for host in ("192.0.2.1", "a..b", "a" * 300):
        with pytest.raises(ServeError):
            bind(host, 0)


@pytest.mark.parametrize("said", [b"", b"GET / HT"])
def test_who_asks_nothing_is_hung_up_on(folder: Path, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every silent connection kept a file of the process open: after a thousand nobody got an answer."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with served(folder) as port, closing(http.client.HTTPConnection("127.0.0.1", port)) as asking:
        asking.request("GET", "/api/view")
        asking.getresponse().read()
        with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as silent:
            silent.sendall(said)
            assert silent.recv(1) == b""
        asking.request("GET", "/api/view")  # on the same connection
        assert asking.getresponse().status == 200


def test_half_a_second_question_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience once ended with the first answer."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with served(folder) as port, closing(socket.create_connection(("127.0.0.1", port), timeout=3)) as slow:
        slow.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 404")
        slow.sendall(b"GET /")
        while slow.recv(1 << 16):
            pass


def test_ten_thousand_polls_leak_nothing(folder: Path) -> None:
    """A dashboard is left open for weeks."""

    def polls(number: int, token: Callable[[int], str]) -> None:
        for i in range(number):
            connection.request("GET", f"/api/view?since={token(i)}")
            data = connection.getresponse().read()
        assert data

    with served(folder) as port, closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        known = view(port)["token"]
        polls(200, lambda i: known if i % 20 else "")
        gc.collect()
        tracemalloc.start()
        try:
            handles = len(os.listdir("/proc/self/fd"))
            before = tracemalloc.get_traced_memory()[0]
            polls(400, lambda i: known if i % 20 else "")
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        polls(9400, lambda i: known)
        assert len(os.listdir("/proc/self/fd")) == handles
        assert grown < 100_000


def test_the_command_prints_its_address_and_ends_by_signal(folder: Path) -> None:
    """What a person types, as a process: address, answer, Ctrl-C without a traceback."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "andrea", "dashboard", str(folder)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    assert found is not None
    taken = subprocess.run([*command, "--port", found[1]], cwd=root, capture_output=True, text=True)
    assert taken.returncode == 1 and "listen on 127.0.0.1" in taken.stderr and "Traceback" not in taken.stderr
    assert view(int(found[1]))["facts"]["step"] == 50
    process.send_signal(2)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in said
