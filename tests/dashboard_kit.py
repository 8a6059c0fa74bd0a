"""Run folders written by hand, and a dashboard that serves one in this process, for the dashboard's tests."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from andrea.dashboard.server import PAGE, Impatient, bind, make_app
from andrea.dashboard.watch import Watch
from andrea.recordfile import to_array
from andrea.runfiles import step_record

NAME = "ANDREA-MINI"


def steps(first: int, last: int, ms: float = 2.0) -> list[dict[str, Any]]:
    """Records of steps first..last; the loss falls, and sources take turns."""
    return [
        step_record(n, "alpha" if n % 3 else "beta", n // 10, 1 + 5 / n, 0.5 + n % 7, 1e-3 / n, ms + n % 5)
        for n in range(first, last + 1)
    ]


def start(step: int = 0, **changes: Any) -> dict[str, Any]:
    """The event of a start."""
    facts = {"step": step, "steps": 60, "pid": 1, "engine": "engine cpu", "memory": {"weights": 4000, "m": 2000}}
    return {"time": 1e9, "event": "start", **facts, "tokens": 32, "epochs": {"alpha": 0.1, "beta": 0.5}, **changes}


def write_run(folder: Path, records: list[dict[str, Any]], *events: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.loss.json").write_bytes(to_array(records))
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def write_samples(folder: Path, *records: dict[str, Any]) -> None:
    lines = ",\n".join(json.dumps(record) for record in records)  # in ASCII: a lone surrogate has no bytes
    (folder / f"{NAME}.samples.json").write_text(f"[\n{lines}\n]\n")


def sample(step: int, text: str = "hello", prompt: str = "hi") -> dict[str, Any]:
    return {"step": step, "prompt": prompt, "text": text, "raw": text, "tokens": 3, "coherence": 50.0}


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a dashboard of `folder` that believes to listen on `host`."""
    listening = bind("127.0.0.1", 0)
    app = make_app(Watch(folder, NAME), PAGE.read_text(), host)
    server = uvicorn.Server(uvicorn.Config(app, http=Impatient, ws="none", lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def get(port: int, path: str = "/api/view", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers in lower case and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def view(port: int, query: str = "") -> dict[str, Any]:
    """The answer for a range of steps, when all has been read."""
    for _ in range(200):
        status, _, text = get(port, f"/api/view?{query}")
        assert status == 200, text
        answer: dict[str, Any] = json.loads(text)
        if answer["complete"]:
            return answer
        time.sleep(0.01)
    raise AssertionError("never complete")
