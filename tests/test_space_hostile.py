"""A Space whose model says nothing but hostile text, and one that is asked again and again."""

import gc
import os

import pytest
from corpus import make_tokenizer
from domino.evaluation.settings import ModelSettings
from spacesite import Site, Visit, in_browser
from tiny import VOCAB, make_draft, make_target
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HOSTILE = [
    "<script>window.hacked=1</script>",
    "<img/src=x/onerror=window.hacked=1>",
    "</span></div><h1>out</h1>",
    "[link](javascript:window.hacked=1)",
    "**bold**",
    '"onmouseover="window.hacked=1',
    "&lt;b&gt;",
    "a\0b",
    "👍🏽",
    "שלום",
    "\u202eright",
    "${window.hacked=1}",
    "{{value}}",
]


def save(folder):
    """The tiny target, its words replaced by hostile ones."""
    plain = make_tokenizer()
    ids = {word: number for word, number in plain.get_vocab().items() if not word.startswith("w") or word == "w3"}
    for number in range(VOCAB - 1):
        if number not in ids.values():
            ids[f"{HOSTILE[number % len(HOSTILE)]}{number}"] = number
    core = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, chat_template=plain.chat_template, **special)
    target = make_target().float()
    target.generation_config.eos_token_id = None  # it goes on to the end
    target.config.eos_token_id = None
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    make_draft().float().save_pretrained(folder / "draft")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    save(folder)
    site = Site(ModelSettings(str(folder / "target"), str(folder / "draft"), name="<b>tiny</b>"), "float32")
    yield site
    site.demo.close()


class TestInTheBrowser:
    pytestmark = in_browser

    def test_text_is_shown_as_text(self, chromium, site):
        prompt = "<script>window.hacked=1</script> [a](javascript:alert(1)) 👍🏽 שלום x\0y"
        visit = Visit(chromium, site.url)
        page = visit.page
        page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
        visit.settings(tokens=64, drafts=4)
        visit.ask(prompt)
        visit.run()
        visit.result()
        said = site.client().predict(prompt, max_new_tokens=64, drafts=4, api_name="/compare")
        shown = visit.words("plain")
        for raw, seen in (("\0", "␀"), ("\u202e", "\ufffd")):
            assert raw not in shown
            said["plain"]["text"] = said["plain"]["text"].replace(raw, seen)
        assert shown == said["plain"]["text"]
        assert "<" in shown or "](" in shown
        page.locator(".pane.ours .t[data-s]").first.hover()
        page.get_by_role("tab", name="Insight").click()
        page.wait_for_selector(".steps")
        nodes = page.locator("#block .tree .node code")
        assert nodes.count() > 2
        assert any("<" in said or "](" in said for said in nodes.all_inner_texts())
        page.locator("#block .tree .node").last.hover()
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert (
            page.locator("#panes script, #panes img, #panes h1, #panes a, #block script, #block img, #block a").count()
            == 0
        )
        assert visit.complaints == []
        assert visit.outside == []
        visit.close()


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(site, requests: int) -> float:
    """Megabytes that this many requests leave behind, after some that fill every cache."""
    client = site.client()

    def ask(number: int) -> None:
        found = client.predict(f"w3 {number}", max_new_tokens=64, drafts=4, seed=number, api_name="/compare")
        assert found["plain"]["tokens"] > 0

    for number in range(6):
        ask(number)
    gc.collect()
    before = resident()
    for number in range(requests):
        ask(number)
    gc.collect()
    return (resident() - before) / 2**20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
def test_memory_stays(site):
    assert grown(site, 8) < 16


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
def test_memory_stays_over_two_hundred_requests(site):
    megabytes = grown(site, 200)
    print(f"{megabytes:.1f} MB after 200 requests")
    assert megabytes < 32
