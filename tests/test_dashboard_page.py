"""The page in a real browser: what it shows is what the files say, nothing in them can run, and it never breaks."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_kit import sample, served, start, steps, write_run, write_samples
from test_resume import SIZES
from test_resume import start as start_trainer
from tiny_run import NAME, make_project, run_folder

from andrea.dashboard.server import PAGE
from andrea.recordfile import read_records, to_array

webdriver = pytest.importorskip("selenium.webdriver", reason="the browser's driver is a Python package: selenium")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs chromium and chromedriver (Debian: chromium chromium-driver)"
)
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update "
    "disable-sync"
)
HOSTILE = "<script>window.hit=1</script><img src=x onerror='window.hit=1'>"


class Page:
    """The page in a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1280) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")
        self.complaints()  # those of the page before are not this one's
        self.driver.get(address)

    def js(self, code: str) -> Any:
        return self.driver.execute_script(f"return {code}")

    def until(self, code: str, seconds: float = 20) -> Any:
        """The value of `code`, as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.js(code)):
            assert time.monotonic() < end, f"never: {code}; the page says {self.js('document.body.innerText')[:1500]}"
            time.sleep(0.05)
        return value

    def text(self, selector: str) -> str:
        """What stands there; of SVG, which has no innerText, all of it."""
        node = f"document.querySelector({json.dumps(selector)})"
        return str(self.js(f"{node}.innerText ?? {node}.textContent"))

    def fact(self, name: str) -> str:
        return self.text(f"[data-fact='{name}'] dd").split("\n")[0]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Page(driver)
    driver.quit()


def test_a_live_run(page: Page, tmp_path: Path) -> None:
    """From before the first step to the stop, in one page that is never loaded again."""
    make_project(tmp_path, **SIZES | {"train__steps": 20_000, "validation__every": 20, "samples__every": 20})
    folder = run_folder(tmp_path)
    with served(folder) as port:
        page.open(f"http://127.0.0.1:{port}/")
        page.until("document.querySelector('#state').innerText.includes('has not begun')")
        page.js("window.same = true")
        trainer = start_trainer(tmp_path, slow=True)
        try:
            page.until("answer.state?.name === 'training' && answer.facts.step >= 60", 60)
            early = page.js("answer.facts.step")
            trainer.send_signal(signal.SIGUSR1)
            page.until(f"answer.facts.step > {early}")
        finally:
            trainer.send_signal(signal.SIGTERM)
            trainer.wait()
        page.until("answer.state.name === 'stopped'")
        assert page.js("window.same") and "SIGTERM" in page.text("#state")
        records = read_records(folder / f"{NAME}.loss.json")
        trained = [r for r in records if "source" in r]
        checked = [r["validation"] for r in records if "validation" in r][-1].values()
        assert page.fact("step") == f"{len(trained):,}"
        mean = sum(r["loss"] for r in trained[-100:]) / len(trained[-100:])
        assert float(page.fact("loss")) == pytest.approx(mean, rel=1e-3)
        assert float(page.fact("validation")) == pytest.approx(
            sum(r["bits_per_byte"] for r in checked) / len(checked), rel=1e-3
        )
        assert float(page.fact("gradient norm")) == pytest.approx(trained[-1]["norm"], rel=1e-3)
        last = read_records(folder / f"{NAME}.samples.json")[-1]
        assert (
            page.js("[...document.querySelectorAll('#samples details[open] pre')].at(-1).textContent") == last["text"]
        )
        assert "SIGUSR1" in page.text("#marks") and "SIGTERM" in page.text("#chart-loss svg")
        drawn = page.js("charts.filter((chart) => !chart.box.hidden).map((chart) => chart.spec.id)")
        assert {
            "loss",
            "bits_per_byte",
            "nats_per_token",
            "norm",
            "lr",
            "speed",
            "share",
            "epochs",
            "coherence",
        } <= set(drawn)
        assert page.complaints() == []


def test_text_in_the_files_is_shown_and_does_not_run(page: Page, tmp_path: Path) -> None:
    """Samples, sources, reasons and prompts may hold anything."""
    rates = {HOSTILE: {"nats_per_token": 1.0, "bits_per_byte": 1.0}}
    records = [step | {"source": HOSTILE} for step in steps(1, 20)]
    ends = {"time": 1e9, "event": "failed", "reason": HOSTILE}
    write_run(tmp_path, [*records, {"step": 20, "validation": rates}], start(engine=HOSTILE), ends)
    write_samples(tmp_path, sample(20, HOSTILE, prompt=HOSTILE))
    with served(tmp_path) as port:
        page.open(f"http://127.0.0.1:{port}/")
        page.until("answer.facts?.step === 20")
    assert page.text("#samples pre") == HOSTILE and HOSTILE in page.text("#state")
    assert HOSTILE in page.text("#samples blockquote p") and HOSTILE in page.text("#chart-share .legend")
    assert page.js("[document.images.length, document.scripts.length, window.hit ?? 'unhurt']") == [0, 1, "unhurt"]
    assert page.complaints() == []


def test_zoom_cursor_and_a_run_that_goes(page: Page, tmp_path: Path) -> None:
    """By keyboard alone; every zoom asks the server for the points that the whole run had no room for."""
    folder = tmp_path / "run"
    records = steps(1, 20_000)
    records[7_776]["loss"] = 99.0
    write_run(folder, records, start(steps=30_000), {"time": 1e9 + 9, "event": "checkpoint", "step": 20_000})
    with served(folder) as port:
        page.open(f"http://127.0.0.1:{port}/", width=390)
        page.until("answer.facts?.step === 20000")
        assert page.js("document.documentElement.scrollWidth") <= 390
        assert page.js("charts[0].y1 > 99 && answer.charts.loss[0].x.includes(7777)")
        chart = page.driver.find_element("css selector", "#chart-loss svg")
        for key in "++":
            chart.send_keys(key)
        page.until("answer.first > 7000 && answer.last < 13000")
        assert page.js("answer.last - answer.first") == pytest.approx(5000, abs=2)
        chart.send_keys(Keys.ARROW_RIGHT)
        assert page.text("#said").startswith("Training loss, step ")
        page.js("document.querySelector('#chart-loss input').click()")
        assert page.js("charts[0].logarithmic")
        chart.send_keys("0")
        page.until("answer.first === 1 && answer.last === 20000")
        write_run(folder, steps(1, 500), start())  # cut back, as after a crash
        page.until("answer.facts.step === 500 && answer.charts.loss[0].x.length === 500")
        shutil.rmtree(folder)
        page.until("document.querySelector('#state').innerText.includes('is gone')")
        assert page.js("charts.every((chart) => chart.box.hidden)")
        assert page.complaints() == []
    page.until("document.querySelector('#notices').innerText.includes('does not answer')")


def test_the_page_alone_draws_a_file(page: Page, tmp_path: Path) -> None:
    """Copied somewhere, opened without any server, it draws a history, also one that a crash has torn."""
    alone, history = tmp_path / "page.html", tmp_path / "x.loss.json"
    shutil.copy(PAGE, alone)
    records = [*steps(1, 3000), {"step": 3000, "validation": {"alpha": {"nats_per_token": 2.0, "bits_per_byte": 1.25}}}]
    shown: list[tuple[bytes, Callable[[], int]]] = [
        (to_array(records), lambda: 3000),
        (to_array(steps(1, 2000))[:-30], lambda: 1999),
    ]
    for data, last in shown:
        history.write_bytes(data)
        page.open(alone.as_uri())
        page.driver.find_element("id", "pick").send_keys(str(history))
        assert page.until("answer.facts?.step") == last()
        assert float(page.fact("loss")) == pytest.approx(
            sum(r["loss"] for r in steps(last() - 99, last())) / 100, rel=1e-3
        )
        assert page.js("document.querySelector('#chart-loss path.curve').getBBox().width") > 500
    page.open(alone.as_uri())
    history.write_bytes(to_array(records))
    page.driver.find_element("id", "pick").send_keys(str(history))
    page.until("answer.facts?.step")
    assert page.text("#chart-bits_per_byte .legend").endswith("alpha 1.25") and page.fact("validation") == "1.25"
    page.driver.find_element("css selector", "#chart-loss svg").send_keys("+")
    assert page.js("shownSteps()[1] - shownSteps()[0]") == pytest.approx(1500, abs=2)
    history.write_text("no JSON")
    page.driver.find_element("id", "pick").send_keys(str(history))
    page.until("document.querySelector('#notices').innerText.includes('no step in this file')")
    assert page.complaints() == []
