"""What a call works with: views of both models, their caches and recordings."""

from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from .. acceleration.graphs import Graphs, graphs_for  # fmt: skip  # isort: skip
from .. acceleration.view import decoding_view  # fmt: skip  # isort: skip
from .. drafting.drafter import DraftSession  # fmt: skip  # isort: skip
from .. verification.target import RowTarget, compile_forward  # fmt: skip  # isort: skip
from . request import Request  # fmt: skip  # isort: skip
from . settings import MOST  # fmt: skip  # isort: skip


@dataclass(frozen=True)
class Sides:
    """The two sides of a call.

    Attributes:
        target: with its cache. session: the drafter's. graphs: what records the work of both; None: it is run. deepest: drafts of a
            block.
    """

    target: RowTarget
    session: DraftSession
    graphs: Graphs | None
    deepest: int

    @property
    def timed(self) -> bool:
        """Times are only the work's own where the host waits for it."""
        return self.target.device.type == "cpu" and self.graphs is None


def open_sides(request: Request) -> Sides:
    """Both sides, with what a continued cache holds."""
    settings, rows, past, outputs = request.settings, request.rows, request.past, request.outputs
    if outputs.inside:  # what happens inside the target does not come out of a recording, nor of a compiled forward
        settings = replace(settings, graphs=False, compile=False)
    assert isinstance(request.draft, PreTrainedModel)  # every drafter is one, which a protocol cannot say
    count, device, config = len(rows.prompts), rows.input_ids.device, request.draft.config
    longest = rows.max_length + past.outside
    static = longest + MOST + 1 if request.config.cache_implementation == "static" else None
    usual = settings.shape != "tree" and not settings.compile and not past.cached
    graphs = graphs_for(settings.graphs, usual, request.target, request.draft)
    packs = settings.pack and not settings.compile  # the compiler packs by itself
    invariant = settings.invariant and not settings.compile  # the compiler orders sums as it likes
    model, draft = decoding_view(request.target, packs, invariant), decoding_view(request.draft, packs)
    target = RowTarget(
        model,
        config.target_layer_ids,
        count,
        longest,
        static,
        request.config.prefill_chunk_size or settings.prefill_chunk,
        settings.compile,
        device,
        graphs,
        states=outputs.hidden_states is not None,
        attentions=outputs.attentions is not None,
    )
    past.load(target.cache)
    run = compile_forward(draft) if settings.compile else None
    context = draft.context_of(past.cache, None if past.outside else rows.input_ids) if count == 1 else None
    session = draft.open(model, count, device, settings.draft_window, run, graphs, settings.candidate_pool, context)
    if past.cached:
        session.continue_at(past.lengths)
    return Sides(target, session, graphs, config.num_drafts)
