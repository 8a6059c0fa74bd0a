"""The dashboard over HTTP: its answers are what the files say, it answers nobody else, and it lasts."""

import fcntl
import gc
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dashboard_kit import NAME, get, sample, served, start, steps, view, write_run, write_samples

from andrea.dashboard.server import PAGE, bind, is_ours
from andrea.dashboard.watch import Watch, find_run
from andrea.errors import RunError, ServeError
from andrea.recordfile import RecordFile

RATES = {"alpha": {"nats_per_token": 2.0, "bits_per_byte": 1.5}, "beta": {"nats_per_token": 3.0, "bits_per_byte": 2.5}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder of 50 of 60 steps."""
    folder = tmp_path / "runs" / NAME
    records = steps(1, 50)
    records[39]["firehose"] = {"alpha": {"reward": 0.5, "coverage": 0.25}}
    write_run(
        folder,
        [*records, {"step": 50, "validation": RATES}],
        start(),
        {"time": 1e9 + 5, "event": "checkpoint", "step": 50},
    )
    write_samples(folder, sample(20), sample(40, "hello there"))
    return folder


def test_an_answer_is_what_the_files_say(folder: Path) -> None:
    """Every number on the page comes from here."""
    records = steps(1, 50)
    with served(folder) as port:
        answer = view(port)
    facts, charts = answer["facts"], {key: {s["name"]: s for s in series} for key, series in answer["charts"].items()}
    assert (facts["step"], facts["steps"], facts["last_loss"]) == (50, 60, 1.1)
    assert facts["loss"] == pytest.approx(sum(r["loss"] for r in records) / 50)
    assert (facts["bits_per_byte"], facts["nats_per_token"]) == (2.0, 2.5)
    assert facts["tokens_per_second"] == pytest.approx(1000 * 32 / (sum(r["ms"] for r in records) / 50))
    assert facts["memory"] == {"weights": 4000, "m": 2000} and facts["engine"] == "engine cpu"
    raw = charts["loss"]["each step"]
    assert raw["x"] == list(range(1, 51)) and raw["y"] == pytest.approx([r["loss"] for r in records], rel=1e-5)
    assert charts["lr"]["learning rate"]["y"][9] == pytest.approx(1e-4)
    assert charts["bits_per_byte"]["beta"] == {"name": "beta", "kind": "points", "x": [50], "y": [2.5]}
    assert charts["reward"]["alpha"]["y"] == [0.5] and charts["coverage"]["alpha"]["x"] == [40]
    assert charts["share"]["alpha"]["y"][-1] == pytest.approx(34 / 50) and charts["epochs"]["beta"]["y"][-1] == 8.0
    assert charts["coherence"]["mean of the samples"]["x"] == [20, 40]
    assert [mark["kind"] for mark in answer["marks"]] == ["start", "checkpoint"]
    assert answer["samples"][0]["texts"][0]["text"] == "hello there"


def test_a_range_is_asked_for_anew(folder: Path) -> None:
    """Zooming shows points that the whole run has no room for."""
    write_run(folder, steps(1, 5000))
    with served(folder) as port:
        whole, part = view(port, "bins=50"), view(port, "first=2000&last=2050&bins=50&smooth=3")
        beyond = view(port, "first=9000&last=9999&bins=1")
        assert view(port, "first=0&last=0&bins=0")["complete"]
    assert len(whole["charts"]["loss"][0]["x"]) <= 100 and (whole["first"], whole["last"]) == (1, 5000)
    assert part["charts"]["loss"][0]["x"] == list(range(2000, 2051)) and part["smooth"] == 3
    mean = sum(r["loss"] for r in steps(2048, 2050)) / 3
    assert part["charts"]["loss"][1]["y"][-1] == pytest.approx(mean, rel=1e-5)
    assert beyond["first"] == beyond["last"] == 5000


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


def held(folder: Path) -> int:
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


ENDS: list[tuple[list[dict[str, Any]], bool, str, str]] = [
    ([], False, "idle", ""),
    ([start()], True, "training", ""),
    ([start(), {"event": "stopped"}], True, "starting", ""),
    ([start(steps=50)], True, "finishing", ""),
    ([start()], False, "died", "killed"),
    ([start(), {"event": "signal", "step": 9, "name": "SIGTERM"}, {"event": "stopped"}], False, "stopped", "SIGTERM"),
    ([start(), {"event": "halted", "reason": "samples must not <b>"}], False, "halted", "must not <b>"),
    ([start(), {"event": "failed", "reason": "the disk is full"}], False, "failed", "the disk is full"),
    ([start(), {"event": "finished"}], False, "finished", "published"),
]


@pytest.mark.parametrize(("events", "working", "name", "words"), ENDS)
def test_the_state_of_a_run(folder: Path, events: list[dict[str, Any]], working: bool, name: str, words: str) -> None:
    """At 3 a.m. the first question is whether it still trains, and if not, why."""
    write_run(folder, steps(1, 50), *({"time": 1e9} | event for event in events))
    handle = held(folder) if working else None
    with served(folder) as port:
        state = view(port)["state"]
    assert state["name"] == name and words in state["text"]
    if handle is not None:
        os.close(handle)


def test_a_run_that_has_not_begun_goes_and_comes_back(folder: Path) -> None:
    """The page was opened before training, and `andrea fresh` came while it was open."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    with served(folder) as port:
        early = view(port)
        assert (early["state"]["name"], early["facts"]["step"], early["facts"]["loss"]) == ("waiting", 0, None)
        folder.mkdir()
        assert view(port)["state"]["name"] == "waiting"
        folder.rmdir()
        aside.rename(folder)
        assert view(port)["facts"]["step"] == 50
        shutil.rmtree(folder)
        gone = view(port)
        assert gone["state"]["name"] == "gone" and gone["facts"]["step"] == 0 and gone["samples"] == []
        write_run(folder, steps(1, 7), start())
        assert view(port)["facts"]["step"] == 7


def test_damaged_files_are_named_and_the_rest_is_shown(folder: Path) -> None:
    """One bad byte in the samples must not hide the loss."""
    (folder / f"{NAME}.samples.json").write_bytes(b"[\n{}\n]\n")
    (folder / "events.jsonl").write_bytes(b"\xff\xfe\n")
    (folder / "checkpoints").write_bytes(b"no folder")
    (folder / "archive" / "40").mkdir(parents=True)
    (folder / "archive" / "40" / f"{NAME}.samples.json").mkdir()
    os.mkfifo(folder / "lock")
    with served(folder) as port:
        answer = view(port)
    assert answer["facts"]["step"] == 50 and len(answer["troubles"]) == 3
    assert answer["state"]["name"] == "idle"


def test_samples_of_all_archives(folder: Path) -> None:
    """A polish pivot empties the run's samples; what came before stands in its archive."""
    for step, records in ((20, [sample(10), sample(20)]), (60, [sample(40, "again"), sample(60, "the last")])):
        archive = folder / "archive" / str(step)
        archive.mkdir(parents=True)
        write_samples(archive, *records)
    write_samples(folder, sample(40))
    with served(folder) as port:
        answer = view(port)
        assert [r["step"] for r in answer["samples"]] == [60, 40, 20]
        shutil.rmtree(folder / "archive")
        assert [r["step"] for r in view(port)["samples"]] == [40]


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
        with pytest.raises(ServeError, match="listen on 127.0.0.1"):
            bind("127.0.0.1", taken)
    for host in ("192.0.2.1", "a..b", "a" * 300):
        with pytest.raises(ServeError):
            bind(host, 0)


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


def test_which_run_is_meant(tmp_path: Path) -> None:
    """A typing error must not wait for a run for ever; a run may be watched before it begins, or under another name."""
    experiment = tmp_path / "experiments" / f"{NAME}-TRAIN.json"
    with pytest.raises(RunError, match="experiment or a run folder") as error:
        find_run("mini", experiment, tmp_path)
    assert "none yet" in error.value.fix
    experiment.parent.mkdir()
    experiment.touch()
    assert find_run("mini", experiment, tmp_path) == (tmp_path / "runs" / NAME, NAME)
    elsewhere = tmp_path / "kept" / "old"
    write_run(elsewhere, steps(1, 3))
    assert find_run(str(elsewhere), Path("experiments/OLD.json"), tmp_path) == (elsewhere, NAME)
    Watch(elsewhere, NAME).refresh()


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
