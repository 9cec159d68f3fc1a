"""A running Space, and a visitor's browser."""

import shutil
import time

import pytest
from domino.evaluation.settings import ModelSettings
from domino.generation import learnt
from domino.space.examples import EXAMPLES
from domino.space.limits import LIMITS
from domino.space.page import build, look
from domino.space.pairs import Shelf
from gradio_client import Client

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Site:
    """A running Space."""

    def __init__(self, pair: ModelSettings, dtype: str):
        self.shelf = Shelf(pair, dtype)
        self.demo = build(self.shelf)
        _, self.url, _ = self.demo.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **look())
        self.shelf.load(pair)
        assert self.shelf.failed == {}

    @property
    def models(self):
        return self.shelf.loaded[self.shelf.first.name]

    def forget(self) -> None:
        """What earlier answers taught the engine: the next one is then that of a fresh process."""
        learnt._learnt.clear()

    def client(self) -> Client:
        return Client(self.url, verbose=False)

    def wait_until_idle(self, seconds: float) -> None:
        client, end = self.client(), time.monotonic() + seconds
        while client.predict(api_name="/status")["busy"]:
            assert time.monotonic() < end, "a slot is still held"
            time.sleep(0.1)


class Visit:
    """A page in a session of its own, and all that it complained of or asked of others."""

    def __init__(self, browser, url: str, query: str = "", **options):
        self.outside, self.complaints = [], []
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url + query)
        self.page.wait_for_function("document.querySelector('#verdict')?.innerText.includes('Ready')", timeout=60_000)

    def _asked(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)

    def settings(self, **values) -> None:
        """Type numbers into sliders, by element id."""
        if not self.page.locator("#tokens").is_visible():
            self.page.get_by_role("button", name="Settings").click()
        for name, value in values.items():
            field, track = (self.page.locator(f"#{name} input[type={kind}]") for kind in ("number", "range"))
            track.wait_for()
            self.page.wait_for_timeout(200)  # Gradio mounts what an accordion holds when it is opened
            field.fill(str(value))
            field.press("Tab")
            self.page.wait_for_timeout(100)
            assert field.input_value() == track.input_value() == str(value)

    def ask(self, prompt: str) -> None:
        self.page.locator("#prompt textarea").fill(prompt)

    def ask_much(self) -> None:
        """Something whose answer does not end by itself."""
        self.ask(EXAMPLES["Chat · travel"])
        self.settings(tokens=LIMITS.new_tokens)

    def run(self) -> None:
        self.page.wait_for_timeout(100)  # or it might pass for one burst of clicks with the last
        self.page.locator("#run").click()

    def result(self, seconds: float = 60) -> str:
        """Waits for the end; returns the verdict."""
        self.page.wait_for_selector(".verdict.result", timeout=1000 * seconds)
        self.page.wait_for_function("!document.querySelector('#run').disabled")
        self.page.evaluate("window.domino.skip()")
        return self.page.inner_text("#verdict")

    def says(self, words: str, seconds: float = 60) -> None:
        """Waits for these words in the verdict."""
        script = "words => document.querySelector('#verdict').innerText.includes(words)"
        self.page.wait_for_function(script, arg=words, timeout=1000 * seconds)

    def tile(self, side: str, name: str) -> str:
        return self.page.inner_text(f".pane.{side} [data-tile={name}]")

    def words(self, side: str) -> str:
        return self.page.locator(f".pane.{side} .words").text_content()

    def close(self) -> None:
        self.context.close()
