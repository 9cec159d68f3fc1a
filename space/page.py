"""The page: components, and which event changes which."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from ..generation.settings import MOST
from .api import Api
from .compare import Runner
from .examples import EXAMPLES, FIRST
from .handlers import NO_BLOCK, Handlers
from .insight import NOTHING
from .limits import LIMITS
from .pairs import ANY_MODEL, Shelf
from .panes import empty
from .results import results
from .ticket import Desk
from .verdict import message

HERE = Path(__file__).resolve().parent
DEVICE: dict[str, Any] = {"concurrency_id": "device", "concurrency_limit": 1}  # one generation at a time, whoever asks
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
HEADER = """
<div class="hero"><svg class="tilemark" viewBox="0 0 64 64" aria-hidden="true"><rect x="16" y="2" width="32" height="60" rx="7"/>
<path d="M20 32h24"/><circle cx="25" cy="12" r="3"/><circle cx="39" cy="22" r="3"/><circle cx="25" cy="40" r="3"/>
<circle cx="39" cy="40" r="3"/><circle cx="32" cy="47" r="3"/><circle cx="25" cy="54" r="3"/><circle cx="39" cy="54" r="3"/></svg>
<div><h1>Domino</h1><p>The same model writes the same text, in fewer steps: a light drafter proposes a tree of tokens, lookup adds what
followed the same words before, and the model checks them all in one forward and keeps what it would have written itself.</p></div></div>
"""
API = """
```python
from gradio_client import Client

client = Client("org/domino")  # or http://127.0.0.1:7860
job = client.submit("How many primes are there below 50?", max_new_tokens=64, api_name="/compare")
for update in job:
    print(update["phase"], update["domino"]["tokens"])
print(update["speedup"], update["domino"]["tau"], update["same_text"])
```
`/compare` streams both answers with every figure of this page, `/stop` ends this client's run within a round, `/status` lists
models and limits. Greedy unless `temperature` is set; `drafts=0` checks as many drafts a round as pay, `drafts=n` at most n, `head=False` is DFlash.
"""


def device_name() -> str:
    """What the figures were measured on, in a word or two."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def build(shelf: Shelf) -> gr.Blocks:
    """The whole app, its queue bounded; nothing is loaded yet."""
    runner = Runner(shelf, Desk())
    on, api = Handlers(runner, device_name(), shelf.dtype), Api(runner)
    with gr.Blocks(title="Domino: the same text, faster", analytics_enabled=False) as demo:
        gr.HTML(HEADER)
        with gr.Tabs():
            with gr.Tab("Compare", id="compare"):
                prompt, settings, run, stop = _controls(shelf)
                ticket = gr.Textbox(visible=False)  # travels with the click, so that each turn finds its own
                verdict = gr.HTML(message("Loading the models …", "busy"), elem_id="verdict")
                with gr.Row(elem_id="panes", equal_height=True):
                    left, right = (gr.HTML(part, elem_classes="side") for part in empty())
                with gr.Row(elem_id="again"):
                    replay = gr.Button("Replay", size="sm", elem_id="replay")
                    skip = gr.Button("Skip replay", size="sm", elem_id="skip")
            with gr.Tab("Insight", id="insight"):
                insight = gr.HTML(NOTHING, elem_id="insight")
                gr.HTML("<h2>One round, step by step</h2>")
                number = gr.Slider(label="Round to look at", step=1, elem_id="round", **NO_BLOCK)
                table = gr.HTML(NOTHING, elem_id="block")
                gr.HTML(f"<h2>Over whole tasks</h2>{results()}", elem_id="results")
            with gr.Tab("API", id="api"):
                gr.Markdown(API)
        # before the page's own events, which would take these names
        gr.api(api.compare, api_name="compare", **DEVICE)
        gr.api(api.stop, api_name="stop", queue=False)
        gr.api(api.status, api_name="status", queue=False)
        state = gr.State(time_to_live=3600)
        buttons = [run, stop]
        waiting = gr.on(
            [run.click, prompt.submit],
            on.enter,
            None,
            [ticket, verdict, *buttons],
            queue=False,
            js="() => { window.domino?.skip(); return []; }",  # or the replay would write into the new run's panes
            **QUIET,
        )
        shown = [left, right, verdict, insight, state, number, table]
        running = waiting.then(
            on.compare, [ticket, prompt, *settings], shown, trigger_mode="multiple", **DEVICE, **QUIET
        )
        running.then(on.leave, None, buttons, queue=False, js="() => { window.domino?.replay(); return []; }", **QUIET)
        running.failure(on.turned_away, None, [verdict, *buttons], queue=False, **QUIET)
        replay.click(None, js="() => window.domino?.replay(true)", **QUIET)
        skip.click(None, js="() => window.domino?.skip()", **QUIET)
        stop.click(on.stop, None, [verdict, *buttons], queue=False, **QUIET)
        number.input(on.block, [state, number], table, trigger_mode="always_last", **DEVICE, **QUIET)
        clock = gr.Timer(0.5)
        gr.on([demo.load, clock.tick], on.greet, None, [verdict, clock], queue=False, **QUIET)
        demo.unload(on.gone)
    return demo.queue(max_size=LIMITS.waiting, default_concurrency_limit=4)


def _controls(shelf: Shelf) -> tuple:
    """Prompt, settings, Run and Stop."""
    with gr.Row(equal_height=True):
        with gr.Column(scale=5, min_width=300):
            prompt = gr.Textbox(
                FIRST, label="Prompt", lines=3, max_lines=8, elem_id="prompt", placeholder="Ask something …"
            )
        with gr.Column(scale=1, min_width=170, elem_id="buttons"):
            run = gr.Button("Run both", variant="primary", elem_id="run")
            stop = gr.Button("Stop", elem_id="stop", interactive=False)
    gr.Examples([[example] for example in EXAMPLES.values()], prompt, example_labels=list(EXAMPLES), label="Examples")
    with gr.Accordion("Settings", open=False):
        settings = _settings(shelf)
    return prompt, settings, run, stop


def _settings(shelf: Shelf) -> list:
    """In the order in which `Handlers.compare` takes them."""
    names = [str(pair.name) for pair in shelf.offered()]
    with gr.Row():
        head = gr.Checkbox(
            True, label="Causal head", info="off: the same backbone alone, which is DFlash", elem_id="head"
        )
        pair = gr.Dropdown(names, value=names[0], label="Model", elem_id="model")
    with gr.Row():
        temperature = gr.Slider(0, 2, 0, step=0.1, label="Temperature", info="0 is greedy", elem_id="temperature")
        top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", info="for temperatures above 0")
        seed = gr.Number(0, label="Seed", info="of the random numbers, for temperatures above 0", precision=0)
    with gr.Row():
        tokens = gr.Slider(8, LIMITS.new_tokens, 128, step=8, label="New tokens", elem_id="tokens")
        drafts = gr.Slider(
            0,
            MOST,
            0,
            step=1,
            label="Drafts per round",
            info="at most; 0: as many as pay; DFlash drafts whole blocks",
            elem_id="drafts",
        )
    head.input(lambda on: gr.update(interactive=on), head, drafts, queue=False, **QUIET)
    settings = [head, pair, temperature, top_p, seed, tokens, drafts]
    if os.environ.get(ANY_MODEL) == "1":
        with gr.Row():
            settings.append(gr.Textbox(label="Other target", info="Hub id; needs its drafter"))
            settings.append(gr.Textbox(label="Its drafter", info="Hub id"))
    return settings


def look() -> dict:
    """Theme, style and script, as arguments of `launch`."""
    sans, mono = ["ui-sans-serif", "system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    theme = gr.themes.Base(primary_hue="teal", neutral_hue="slate", radius_size="lg", font=sans, font_mono=mono)
    return {
        # white on teal-700 has a contrast of 5.5
        "theme": theme.set(
            button_primary_background_fill="*primary_700",
            button_primary_background_fill_hover="*primary_800",
            button_primary_text_color="white",
            button_primary_background_fill_dark="*primary_700",
        ),
        "css": (HERE / "style.css").read_text(encoding="utf-8"),
        "head": f"<script>{(HERE / 'replay.js').read_text(encoding='utf-8')}</script>",
        "footer_links": [],  # the page has a tab on its API; Gradio's own panel asks for things that are not there
    }
