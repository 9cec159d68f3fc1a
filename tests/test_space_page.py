"""The Space as its visitors have it: the embedded pair in Chromium and through gradio_client."""

import os
import time
from pathlib import Path

import pytest
from domino.evaluation.answering import encode, run
from domino.evaluation.methods import METHODS
from domino.evaluation.settings import ModelSettings
from domino.space.examples import EXAMPLES
from domino.space.limits import LIMITS
from gradio_client.exceptions import AppError
from spacesite import Site, Visit, in_browser

# Pages and clients wait for each other by the clock, and rates are compared, on a machine that may stand still for a second.
pytestmark = pytest.mark.flaky(reruns=2)

MATHS = "How many primes are there below 50?"


# Of an element's text and ground, as WCAG defines it; grounds here are opaque.
CONTRAST = """part => {
  const found = getComputedStyle(document.querySelector(part));
  const light = colour => {
    const [r, g, b] = colour.match(/\\d+/g).slice(0, 3).map(n => n / 255).map(
      c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const [low, high] = [light(found.color), light(found.backgroundColor)].sort((a, b) => a - b);
  return (high + .05) / (low + .05);
}"""


def colour(page, part: str) -> str:
    """The ground of the first such element."""
    return page.locator(part).first.evaluate("node => getComputedStyle(node).backgroundColor")


def shown(page, number: int) -> list[str]:
    """The tokens of a round in the pane, as the tree writes them."""
    words = page.locator(f".pane.ours .t[data-r='{number}']").all_text_contents()
    return [word.replace("\n", "⏎").replace(" ", "␣") for word in words]


@pytest.fixture(scope="module")
def site():
    site = Site(ModelSettings(), "bfloat16")
    yield site
    site.demo.close()


@pytest.fixture
def visit(chromium, site):
    visit = Visit(chromium, site.url)
    yield visit
    visit.close()


def expected(site, prompt: str, max_new_tokens: int, method: str = "plain", **options):
    """What `domino eval` would get: text, and the watched call."""
    models = site.models
    inputs = encode(models.tokenizer, prompt, "cpu")
    ids, call = run(models, METHODS[method], inputs, 0, do_sample=False, max_new_tokens=max_new_tokens, **options)
    return models.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), call


def test_the_api_streams_what_domino_eval_measures(site):
    site.forget()
    job = site.client().submit(MATHS, max_new_tokens=32, drafts=8, api_name="/compare")
    updates = list(job)
    assert len({update["plain"]["tokens"] for update in updates}) > 3
    assert len({update["domino"]["tokens"] for update in updates}) > 3
    found = updates[-1]
    assert found["phase"] == "done"
    site.forget()
    for name, method, options in (("plain", "plain", {}), ("domino", "engine", {"budget": 8})):
        text, call = expected(site, MATHS, 32, method, **options)
        assert found[name]["text"] == text
        assert (found[name]["advanced"], found[name]["drafted"]) == (call.advanced, call.drafted)
        # timings of a busy test machine: the same within a factor, the definitions are compared exactly in test_space.py
        assert found[name]["tokens_per_second"] == pytest.approx(call.new_tokens / call.seconds, rel=0.6)
    assert found["domino"]["lookup"] == site.models.draft.statistics.lookup


def test_the_api_tells_what_lookup_found(site):
    found = site.client().predict(EXAMPLES["Edit · grammar"], max_new_tokens=32, drafts=8, api_name="/compare")
    ours = found["domino"]
    assert 0 < ours["found_by_lookup"] == sum(ours["lookup"]) < ours["tokens"]
    assert len(ours["lookup"]) == len(ours["depths"]) == ours["rounds"]
    assert max(ours["drafted"]) == 8
    assert found["plain"]["found_by_lookup"] == 0


def test_ten_jobs_in_line_get_their_own_answers(site):
    client = site.client()
    prompts = [f"Say the number {n}." for n in range(10)]
    wanted = [expected(site, prompt, 4)[0] for prompt in prompts]
    jobs = [client.submit(prompt, max_new_tokens=4, drafts=4, api_name="/compare") for prompt in prompts]
    assert [job.result()["plain"]["text"] for job in jobs] == wanted
    assert len(set(wanted)) > 3


def test_stop_through_the_api(site):
    client = site.client()
    job = client.submit(MATHS, max_new_tokens=LIMITS.new_tokens, api_name="/compare")
    while not job.outputs() or job.outputs()[-1]["plain"]["tokens"] < 4:
        time.sleep(0.02)
    assert client.predict(api_name="/stop") is True
    assert job.result()["phase"] == "stopped"
    assert job.result()["plain"]["tokens"] < LIMITS.new_tokens
    assert job.result()["domino"]["tokens"] == 0
    assert client.predict(api_name="/stop") is False


@pytest.mark.parametrize(
    ("prompt", "words"),
    [("", "prompt is empty"), ("x" * 100_000, "100,000 characters"), ("a b " * 1900, "tokens long")],
)
def test_refusals_have_a_message_and_no_trace(site, prompt, words):
    with pytest.raises(AppError, match=words) as refused:
        site.client().predict(prompt, api_name="/compare")
    assert "Traceback" not in str(refused.value)
    assert site.client().predict(api_name="/status")["busy"] == 0


def test_too_long_a_line_turns_requests_away(site):
    client = site.client()
    jobs = [
        client.submit("Hi", max_new_tokens=LIMITS.new_tokens, api_name="/compare") for _ in range(LIMITS.waiting + 8)
    ]
    deadline, full = time.monotonic() + 120, []
    while not full and time.monotonic() < deadline:
        full = [job for job in jobs if job.done() and job.exception() is not None]
        time.sleep(0.1)
    assert "full" in str(full[0].exception()).lower()
    for job in jobs:
        job.cancel()
    client.predict(api_name="/stop")


class TestInTheBrowser:
    pytestmark = in_browser

    def test_an_example_from_click_to_verdict(self, site, visit):
        page = visit.page
        page.get_by_text("Code · palindrome").click()
        visit.settings(tokens=32, drafts=8)
        site.forget()
        visit.run()
        seen = {"plain": set(), "ours": set()}
        while not page.locator(".verdict.result").count():
            for side in seen:
                seen[side].add(page.locator(f".pane.{side} .t[data-s]").count())
            time.sleep(0.05)
        assert len(seen["plain"]) > 3
        assert len(seen["ours"]) > 3
        visit.result()
        prompt = page.locator("#prompt textarea").input_value()
        site.forget()
        again = site.client().predict(prompt, max_new_tokens=32, drafts=8, api_name="/compare")
        assert visit.tile("ours", "rounds") == str(again["domino"]["rounds"])
        assert visit.tile("ours", "tau") == f"{again['domino']['tau']:.2f}"
        assert visit.words("plain") == again["plain"]["text"]
        shown = float(page.locator(".verdict.result").get_attribute("data-speedup"))
        rates = [float(visit.tile(side, "rate")) for side in ("ours", "plain")]
        assert shown == pytest.approx(rates[0] / rates[1], rel=0.02)
        assert shown == pytest.approx(again["speedup"], rel=0.5)
        assert f"{shown:.2f}×" in page.inner_text("#verdict")
        kept = page.locator(".pane.ours .kept[data-s]")
        assert kept.count() == sum(n - 1 for n in again["domino"]["advanced"])
        assert "chance of being kept" in kept.first.get_attribute("title")
        assert page.locator(".pane.ours .found[data-s]").count() == again["domino"]["found_by_lookup"]
        assert visit.outside == []
        assert visit.complaints == []

    def test_the_replay_keeps_the_pace_and_can_be_skipped(self, visit):
        page = visit.page
        visit.settings(tokens=32)
        visit.run()
        visit.result()
        seconds = float(visit.tile("plain", "seconds").split()[0])
        rate, began = visit.tile("plain", "rate"), time.monotonic()
        page.locator("#replay").click()
        page.wait_for_selector("body.replaying")
        assert page.locator(".pane .t.later").count() > 10
        page.wait_for_selector("body:not(.replaying)", timeout=20_000)
        assert time.monotonic() - began == pytest.approx(seconds, rel=0.3, abs=0.7)
        assert visit.tile("plain", "rate") == rate
        page.locator("#replay").click()
        page.locator("#skip").click()
        assert page.locator(".later").count() == 0
        assert visit.tile("plain", "rate") == rate

    def test_lookup_has_its_colour_and_count_also_in_the_replay(self, visit):
        page = visit.page
        page.get_by_text("Edit · grammar").click()
        visit.settings(tokens=32, drafts=8)
        visit.run()
        visit.result()
        found = page.locator(".pane.ours .words .found")
        count, said = found.count(), page.locator(".pane.ours .words .t").count()
        assert count > 0
        words = f"{count} of {said} tokens were found by lookup"
        assert words in page.inner_text(".pane.ours")
        assert f"{count} of {said} tokens found by lookup" in page.inner_text("#verdict")
        colours = {kind: colour(page, f".pane.ours .legend .{kind}") for kind in ("kept:not(.found)", "found", "bonus")}
        assert len(set(colours.values())) == 3
        assert colour(page, ".pane.ours .words .found") == colours["found"]
        page.locator("#replay").click()
        page.wait_for_selector("body.replaying")
        assert int(visit.tile("ours", "found")) < count
        assert int(visit.tile("ours", "said")) < said
        page.locator("#skip").click()
        assert words in page.inner_text(".pane.ours")
        assert visit.complaints == []

    def test_insight_explains_the_run(self, visit):
        page = visit.page
        page.get_by_text("Edit · grammar").click()
        visit.settings(tokens=32, drafts=8)
        visit.run()
        visit.result()
        page.get_by_role("tab", name="Insight").click()
        rounds = int(visit.page.locator(".pane.ours [data-tile=rounds]").text_content())
        assert page.locator(".steps tbody tr").count() == 8
        assert page.locator("#results tr.domino").count() >= 5
        counts = [int(b) for b in page.locator(".bars").nth(1).locator("b").all_inner_texts()]
        assert sum(counts) == rounds
        field = page.locator("#round input[type=number]")
        first = int(field.input_value())
        for number in (first, *(n for n in range(1, rounds + 1) if n != first)):
            field.fill(str(number))
            field.press("Enter")
            page.wait_for_selector(f"#block :text('Round {number}: the tree')")
            tree = page.locator("#block .tree")
            kept = tree.locator(".node.kept, .node.bonus")
            said = kept.locator("code").all_inner_texts()
            assert ["" if token == "<|im_end|>" else token for token in said] == shown(page, number)
            assert tree.locator(".node.anchor").count() == 1
            put = tree.locator(".node.kept, .node.missed").count()
            assert f"{put} token" in page.inner_text("#block .round-tree p") or put == 0
            if number == first:
                assert tree.locator("ul > li + li").count() > 0  # it has branches
        assert visit.complaints == []

    def test_without_the_head_it_is_dflash(self, visit):
        page = visit.page
        visit.settings(tokens=16)
        page.locator("#head input").uncheck()
        page.wait_for_function("document.querySelector('#drafts input[type=number]').disabled")
        visit.run()
        visit.result()
        assert "DFlash" in page.inner_text(".pane.ours header")
        page.get_by_role("tab", name="Insight").click()
        page.wait_for_selector(".steps")
        assert "had the head off" in page.inner_text("#block")
        assert "tells of no trees" in page.inner_text("#block")
        assert page.locator("#block .tree").count() == 0
        page.get_by_role("tab", name="Compare").click()
        page.locator("#head input").check()
        page.wait_for_function("!document.querySelector('#drafts input[type=number]').disabled")
        assert visit.complaints == []

    def test_stop_in_the_page(self, site, visit):
        page = visit.page
        visit.ask_much()
        visit.run()
        page.wait_for_function("document.querySelectorAll('.pane.plain .t').length > 5", timeout=20_000)
        page.locator("#stop").click()
        visit.says("Stopped")
        assert page.locator(".pane.ours .t[data-s]").count() == 0
        assert page.locator(".pane.plain .t[data-s]").count() < LIMITS.new_tokens
        page.wait_for_function("!document.querySelector('#run').disabled")
        site.wait_until_idle(30)

    def test_stop_in_line_and_a_later_click(self, chromium, site, visit):
        """Stop answers while another session runs; of two clicks the later one's prompt is answered."""
        page = visit.page
        busy = Visit(chromium, site.url)
        busy.ask_much()
        busy.run()
        busy.says("1 of 2")
        visit.settings(tokens=8)
        visit.run()
        visit.says("Waiting: one request")
        page.locator("#stop").click()
        visit.says("Stopped before its turn")
        assert page.locator("#run").is_enabled()
        assert "1 of 2" in busy.page.inner_text("#verdict")
        visit.run()
        visit.says("Waiting: one request")
        visit.ask("Name an animal.")
        page.locator("#prompt textarea").press("Shift+Enter")
        busy.page.locator("#stop").click()
        busy.says("Stopped")
        visit.result()
        assert visit.words("plain") == expected(site, "Name an animal.", 8)[0]
        assert visit.complaints == []
        busy.close()
        site.wait_until_idle(30)

    def test_a_new_run_ends_the_replay_and_a_full_line_is_said(self, site, visit):
        page = visit.page
        visit.settings(tokens=32)
        visit.run()
        page.wait_for_selector("body.replaying", timeout=60_000)
        visit.ask_much()
        visit.run()
        visit.says("1 of 2")
        assert page.locator("body.replaying").count() == 0
        page.locator("#stop").click()
        visit.says("Stopped")
        client = site.client()
        jobs = [
            client.submit("Hi", max_new_tokens=LIMITS.new_tokens, api_name="/compare")
            for _ in range(LIMITS.waiting + 8)
        ]
        while not [job for job in jobs if job.done()]:
            time.sleep(0.1)
        visit.run()
        visit.says("Too many requests")
        page.wait_for_function("!document.querySelector('#run').disabled")
        for job in jobs:
            job.cancel()
        client.predict(api_name="/stop")
        site.wait_until_idle(60)

    def test_three_sessions_and_ten_clicks(self, chromium, site):
        prompts = ["Name a colour.", "Name an animal.", "Name a city."]
        wanted = [expected(site, prompt, 8)[0] for prompt in prompts]
        visits = [Visit(chromium, site.url) for _ in prompts]
        for visit, prompt in zip(visits, prompts, strict=True):
            visit.settings(tokens=8)
            visit.ask(prompt)
        for visit in visits:
            visit.page.evaluate("for (let n = 0; n < 10; n++) document.querySelector('#run').click()")
        for visit, text in zip(visits, wanted, strict=True):
            visit.result(120)
            assert visit.words("plain") == text
            assert visit.complaints == []
            visit.close()
        site.wait_until_idle(30)

    def test_a_closed_tab_frees_the_slot(self, chromium, site):
        visit = Visit(chromium, site.url)
        visit.ask_much()
        visit.run()
        visit.page.wait_for_function("document.querySelectorAll('.pane.plain .t').length > 5", timeout=20_000)
        visit.close()
        site.wait_until_idle(30)
        assert site.client().predict("Hi", max_new_tokens=4, api_name="/compare")["phase"] == "done"

    def test_refusals_are_sentences_in_the_page(self, visit):
        for prompt, words in (("  ", "The prompt is empty"), ("x" * 100_000, "100,000 characters")):
            visit.ask(prompt)
            visit.run()
            visit.says(words)
            visit.page.wait_for_function("!document.querySelector('#run').disabled")

    def test_keyboard_and_labels(self, visit):
        page = visit.page
        visit.settings(tokens=8)
        page.locator("#run").focus()
        page.keyboard.press("Enter")
        visit.result()
        assert page.get_by_label("Prompt").count() >= 1
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, textarea')].filter(n => n.offsetParent && !(n.labels?.length || "
            "n.ariaLabel || n.innerText?.trim() || n.title || n.placeholder)).map(n => n.outerHTML)"
        )
        assert unnamed == []
        assert page.locator("#verdict").get_attribute("aria-live") == "polite"

    @pytest.mark.parametrize(
        ("name", "query", "width"),
        [
            pytest.param("desktop", "?__theme=light", 1280, marks=pytest.mark.slow),
            ("dark", "?__theme=dark", 1280),
            ("phone", "", 390),
        ],
    )
    def test_dark_and_phone(self, chromium, site, tmp_path, name, query, width):
        """Nothing is wider than the screen; with DOMINO_SCREENSHOTS the pictures of docs/space.md are written there."""
        folder = Path(os.environ.get("DOMINO_SCREENSHOTS", tmp_path))
        visit = Visit(chromium, site.url, query, viewport={"width": width, "height": 900})
        page = visit.page
        page.get_by_text("Edit · grammar").click()
        if "DOMINO_SCREENSHOTS" not in os.environ:
            visit.settings(tokens=16)
        visit.run()
        visit.result()
        page.screenshot(path=folder / f"space-{name}.png", full_page=name == "phone")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("tab", name="Insight").click()
        page.wait_for_selector(".steps")
        page.wait_for_selector(".tree")
        page.screenshot(path=folder / f"space-{name}-insight.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for part in (".legend .kept:not(.found)", ".legend .found", ".legend .bonus", ".tree .kept", ".tree .bonus"):
            assert page.evaluate(CONTRAST, part) >= 4.5, part
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(245, 247, 250)"
        assert dark == (name == "dark")
        visit.close()
