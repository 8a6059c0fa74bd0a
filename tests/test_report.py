"""The report: one page that stands alone, shows what a run did, and trusts none of the files it reads."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bandit_run import BANDIT
from finished_run import STEPS, finished_run, put, records

from andrea.archive import archive
from andrea.errors import AndreaError, DataError
from andrea.report import build
from andrea.runfiles import step_record

STEP_RECORDS = [step_record(n, "chitchat", 0, 6 / n, 1.5, 1e-3, 2.0) for n in range(1, STEPS + 1)]
RUN = Path("runs/ANDREA-TINY")
HISTORY = RUN / "ANDREA-TINY.loss.json"
SAMPLES = RUN / "archive" / str(STEPS) / "ANDREA-TINY.samples.json"


class Page(HTMLParser):
    """Ids, outside references, script data and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.inside: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href") and value and not value.startswith("#"):
                self.outside.append(value)

    def handle_endtag(self, tag: str) -> None:
        self.inside.append("/" + tag)

    def handle_data(self, data: str) -> None:
        if self.inside[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.inside[-1:] != ["style"]:
            self.text += data


def page_of(root: Path, **train: Any) -> Page:
    experiment = finished_run(root, **train)
    archive(experiment, root)
    build(experiment, root)
    return Page((root / "results" / "ANDREA-TINY" / "report.html").read_text())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(tmp_path_factory.mktemp("report"))


def test_page_stands_alone(page: Page) -> None:
    """Guards against a page that is empty without a network: nothing is loaded, plotly.js is inside once."""
    assert page.outside == []
    assert sum("plotly.js v" in script for script in page.scripts) == 1


def test_every_part_is_there(page: Page) -> None:
    """Guards against a section that got lost, and against links to nowhere."""
    parts = (
        "stages evaluation loss epochs norm rate bits_per_byte nats_per_token samples firehose data files tokenizer "
    )
    parts += "timings versions hashes log experiment"
    assert set(parts.split()) <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    for text in ("MIT", "written by hand", "3 too short", "1.250", "1.875", "2.4.6", "overlap.words", '"d_model": 128'):
        assert text in page.text
    assert re.search(r"model\.bin\s*[0-9a-f]{64}", page.text)


def test_charts_hold_the_history(page: Page) -> None:
    """Guards against curves that are not the run's numbers."""
    charts = {chart["id"]: chart for chart in json.loads(page.scripts[0])}
    raw = charts["loss"]["traces"][0]
    assert raw["x"] == list(range(1, STEPS + 1))
    assert raw["y"][:3] == [6.0, 3.0, 2.0]
    assert charts["bits_per_byte"]["traces"][0]["y"] == [1.25]


def test_the_stages_are_drawn_with_their_figures(tmp_path: Path) -> None:
    """Guards against a page that does not say how it came about; a name of anyone's own must not become markup."""
    experiment = finished_run(tmp_path)
    manifest = tmp_path / "data" / "ANDREA-TINY" / "megachat" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"set"', '"<b>&set</b>"'))
    times = tmp_path / "logs" / "ANDREA-TINY" / "tokens.tsv"
    times.parent.mkdir(parents=True)
    times.write_text("s\tmax_rss\n185.0\t1\n")
    archive(experiment, tmp_path)
    build(experiment, tmp_path)
    page = Page((tmp_path / "results" / "ANDREA-TINY" / "report.html").read_text())
    assert page.inside.count("rect") == 7
    for text in ("<b>&set</b>", "20 documents", "28 documents", "513 tokens", "3 min 05 s", "this page"):
        assert text in page.text
    assert "b" not in page.inside


def test_the_log_is_told_without_its_progress(page: Page) -> None:
    """Guards against a report that hides that a run was stopped five times."""
    assert "new run, step 0 of 40" in page.text and "step 20: held-out" in page.text
    assert "7/40 steps" not in page.text


def bandit_page(root: Path, **arm: Any) -> Page:
    """A page of the mini bandit, whose sources are the tiny model's."""
    text = json.dumps(BANDIT).replace('"alpha": 0.1, "beta"', '"chitchat": 0.1, "synthetic-chat"')
    text = text.replace('"alpha": 1.3, "beta"', '"chitchat": 1.3, "synthetic-chat"').replace(
        '["alpha"]', '["chitchat"]'
    )
    weights = {"chitchat": 0.9, "synthetic-chat": 0.1}
    recipe = {"policy": "bandit", "weights": weights, "window_steps": [7, 42], "bandit": json.loads(text)}
    experiment = finished_run(root, {"firehose": recipe})
    if arm:
        state = SAMPLES.with_name("ANDREA-TINY.state.json")
        put(root / state, {"step": STEPS, "firehose": {"arms": dict.fromkeys(experiment.sources, arm)}})
    archive(experiment, root)
    build(experiment, root)
    return Page((root / "results" / "ANDREA-TINY" / "report.html").read_text())


def test_the_bandit_has_its_panels(tmp_path: Path) -> None:
    """Guards against a bandit whose reasons nobody can check afterwards."""
    page = bandit_page(tmp_path)
    for text in ("documents seen", "85.7%", "12.50", "cap", "1.3"):
        assert text in page.text
    charts = {chart["id"]: chart for chart in json.loads(page.scripts[0])}
    for key, value in (("reward", 0.25), ("coverage", 0.5)):
        assert [(t["name"], t["x"], t["y"]) for t in charts[key]["traces"]] == [
            (name, [10], [value]) for name in ("chitchat", "synthetic-chat")
        ]
    assert charts["reward"]["marks"] == [[13, "all sources"]]
    assert charts["epochs"]["traces"][0]["y"][-1] == STEPS * 4 * 256 / 2048


@pytest.mark.parametrize(
    "arm",
    [
        {"reward": "x", "documents": 7, "seen": "Pw=="},
        {"reward": 1.0, "documents": 10**15, "seen": "Pw=="},
        {"reward": 1.0, "documents": 0, "seen": ""},
        {"reward": 1.0, "documents": 7, "seen": "????"},
        {"reward": 1.0, "documents": 7, "seen": 3},
    ],
)
def test_a_state_that_lies_is_explained(tmp_path: Path, arm: dict[str, Any]) -> None:
    """Guards against a traceback, or all of the machine's memory, out of a state that someone has edited."""
    with pytest.raises(AndreaError):
        bandit_page(tmp_path, **arm)


def test_text_of_the_model_is_escaped(tmp_path: Path) -> None:
    """Guards against a sample or a source that runs as code in the reader's browser."""
    evil = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"
    experiment = finished_run(tmp_path)
    sample = {"step": STEPS, "prompt": evil, "text": evil, "raw": evil, "tokens": 1}
    (tmp_path / SAMPLES).write_text(records([sample]))
    history = json.loads((tmp_path / HISTORY).read_text())
    history[0]["source"] = evil
    (tmp_path / HISTORY).write_text(records(history))
    archive(experiment, tmp_path)
    build(experiment, tmp_path)
    page = Page((tmp_path / "results" / "ANDREA-TINY" / "report.html").read_text())
    assert page.text.count(evil) == 2  # as text, in prompt and answer
    assert "img" not in page.inside
    assert len(page.scripts) == 3
    assert evil in [trace["name"] for trace in json.loads(page.scripts[0])[0]["traces"]]


def test_samples_of_overlapping_archives_count_once(tmp_path: Path) -> None:
    """Guards against doubled samples after `steps` was raised: the later archive holds the earlier ones, too."""
    experiment = finished_run(tmp_path)
    earlier = {"step": 20, "prompt": "Hello", "text": "An early try", "raw": "", "tokens": 3}
    last = json.loads((tmp_path / SAMPLES).read_text())
    (tmp_path / SAMPLES).write_text(records([earlier, *last]))
    first = tmp_path / RUN / "archive" / "20"
    first.mkdir()
    (first / SAMPLES.name).write_text(records([earlier]))
    archive(experiment, tmp_path)
    build(experiment, tmp_path)
    page = Page((tmp_path / "results" / "ANDREA-TINY" / "report.html").read_text())
    assert page.text.count("An early try") == 1
    assert page.text.index("step 40") < page.text.index("step 20")


def test_loss_that_is_not_finite(tmp_path: Path) -> None:
    """Guards against a page that cannot be made of just the run whose curve one wants to see."""
    experiment = finished_run(tmp_path)
    history = json.loads((tmp_path / HISTORY).read_text())
    history[4] |= {"loss": None, "nonfinite": {"loss": "nan"}}
    (tmp_path / HISTORY).write_text(records(history))
    archive(experiment, tmp_path)
    build(experiment, tmp_path)
    page = Page((tmp_path / "results" / "ANDREA-TINY" / "report.html").read_text())
    assert json.loads(page.scripts[0])[0]["traces"][0]["y"][4] is None


def test_long_histories_are_thinned(tmp_path: Path) -> None:
    """Guards against a page of a long run that no phone can open."""
    page = page_of(tmp_path, steps=50_000)
    assert len(page.scripts[0]) < 500_000


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (HISTORY, None),
        (HISTORY, "[]"),
        (HISTORY, '[\n{"step":1}\n]\n'),
        (HISTORY, records([{"step": n, "loss": "low"} for n in range(1, STEPS + 1)])),
        (HISTORY, records([{"step": n} for n in range(2, STEPS + 1)])),
        (HISTORY, records([*STEP_RECORDS[:-1], STEP_RECORDS[-1] | {"firehose": {"chitchat": {"reward": "x"}}}])),
        (SAMPLES, records([{"step": STEPS, "prompt": 5, "text": "a"}])),
        (SAMPLES.with_name("final_evaluation.json"), None),
        (SAMPLES.with_name("final_evaluation.json"), '{"sources": {"chitchat": {}}, "mean": 3}'),
        (Path("data/ANDREA-TINY/megachat/manifest.json"), '{"sources": {"chitchat": {"dataset": 7}}}'),
        (Path("data/ANDREA-TINY/tokens/manifest.json"), '{"sources": {}}'),
        (Path("data/ANDREA-TINY/tokenizer/report.json"), "[1]"),
        (Path("results/ANDREA-TINY/resolved.json"), '{"made_with": [3]}'),
        (Path("results/ANDREA-TINY/archive") / str(STEPS) / "manifest.json", '{"files": {"a": "b"}}'),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, file: Path, content: str | None) -> None:
    """Guards against a traceback, or a page of half the truth, where one of the files is missing or wrong."""
    experiment = finished_run(tmp_path)
    archive(experiment, tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(DataError) as error:
        build(experiment, tmp_path)
    assert file.name in str(error.value)
    assert not (tmp_path / "results" / "ANDREA-TINY" / "report.html").exists()


def test_a_hash_that_is_no_text(tmp_path: Path) -> None:
    """JSON can spell lone surrogates, which no page in UTF-8 can hold: a traceback."""
    experiment = finished_run(tmp_path)
    archive(experiment, tmp_path)
    manifest = tmp_path / "results" / "ANDREA-TINY" / "archive" / str(STEPS) / "manifest.json"
    facts = json.loads(manifest.read_text())
    next(iter(facts["files"].values()))["sha256"] = "half \ud83d of it"
    manifest.write_text(json.dumps(facts))
    build(experiment, tmp_path)
    assert "half ? of it" in (tmp_path / "results" / "ANDREA-TINY" / "report.html").read_text()
