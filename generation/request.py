"""What one call of the engine is asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from transformers import GenerationConfig, PreTrainedModel

from .. drafting.drafter import Drafter  # fmt: skip  # isort: skip
from . outputs import Outputs  # fmt: skip  # isort: skip
from . past import Past  # fmt: skip  # isort: skip
from . processing import Processing  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . settings import EngineSettings  # fmt: skip  # isort: skip
from . statistics import Round  # fmt: skip  # isort: skip

OnTokens = Callable[[int, list[int]], None]  # told (row, new tokens) after every round
OnRound = Callable[[int, Round], None]  # told (row, what a round put to the target and what was kept)


@dataclass(frozen=True)
class Request:
    """What one call of the engine is asked for.

    Attributes:
        target: the model that verifies. draft: its drafter. settings: see `EngineSettings`. config: of the call. rows: the texts.
        processing: of their logits. past: the cache it continues. outputs: what it returns besides the texts. on_round: told of
            every round.
    """

    target: PreTrainedModel
    draft: Drafter
    settings: EngineSettings
    config: GenerationConfig
    rows: Rows
    processing: Processing
    past: Past
    outputs: Outputs
    on_round: OnRound | None = None
