"""How a call decodes."""

from dataclasses import dataclass
from typing import Any, Literal

from .. verification.accept import RULES  # fmt: skip  # isort: skip

MOST = 64  # nodes of a tree, at most
SHAPES = ("auto", "tree", "chain")
DRAWS = ("shared", "sampled")
LOOPS = ("auto", "engine", "transformers")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class EngineSettings:
    """How a call decodes.

    Attributes:
        loop: "engine", our own; "transformers", its assisted loop, one row and chains alone, to which all else here means nothing; "auto"
            is the engine, and transformers' where the engine cannot (a log line says why).
        budget: nodes of a round's tree, or "auto" for as many as pay (`budget.py`); 0 decodes without drafts. `num_assistant_tokens`
            bounds either where it is not transformers' default, 20.
        shape: what the drafter proposes, "tree" or "chain"; "auto" is a tree on a CPU and a chain elsewhere, where trees never ran.
        lookup: whether what followed the last tokens earlier in the text is drafted, too; off a CPU only with shape="tree".
        lookup_memory: tokens of earlier answers with this drafter that are searched as well; they stay in memory.
        draws: with sampling, "shared": the target draws its tokens with the random numbers of plain `generate`, which the drafter knows
            (`noise.py`), so a seed gives plain `generate`'s text; or "sampled": nodes are drawn from the drafter's q and kept by `accept`.
        accept: rule for sampled nodes, see `accept.RULES`; "walk" reads no q, so that its nodes are the likeliest ones.
        draft_window: recent tokens the drafter's context keeps besides the first four; None keeps all.
        prefill_chunk: tokens of a prompt read at a time.
        candidate_pool: tokens that the drafter's nodes come from, the likeliest of the block by base logits; 0 is the whole vocabulary.
        compile: `torch.compile` the target's verification and the drafter's block: a minute or two once, then faster rounds.
        graphs: on a GPU, record verification, block and head once for a shape and replay them as one launch each (`graphs.py`);
            "auto" where a check on that device passed and the call asks for no tree.
        pack: on a CPU in bfloat16, arrange the weights of linear layers once for its matrix units (`packed_weights.py`), which takes
            the memory of the weights again and is left out where a quarter of the free memory does not hold that.
        invariant: on a CPU in bfloat16, no token's logits depend on what is read with it, so a greedy text is the same with drafts and
            without, alone and in a batch, bit for bit. Where that does not hold (`invariance.obstacle`) the call goes on without.
    """

    loop: str = "auto"
    budget: int | Literal["auto"] = "auto"
    shape: str = "auto"
    lookup: bool = True
    lookup_memory: int = 0
    draws: str = "shared"
    accept: str = "traversal"
    draft_window: int | None = None
    prefill_chunk: int = 512
    candidate_pool: int = 1024
    compile: bool = False
    graphs: bool | Literal["auto"] = "auto"
    pack: bool = True
    invariant: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (("loop", LOOPS), ("accept", tuple(RULES)), ("shape", SHAPES), ("draws", DRAWS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if self.budget != "auto" and not (_whole(self.budget, 0) and self.budget <= MOST):
            raise ValueError(f'budget must be "auto" or a number of nodes from 0 to {MOST}, got {self.budget!r}.')
        for name in ("candidate_pool", "lookup_memory"):
            if not _whole(getattr(self, name), 0):
                raise ValueError(f"{name} must be a number of tokens, 0 or more, got {getattr(self, name)!r}.")
        if not _whole(self.prefill_chunk, 1):
            raise ValueError(f"prefill_chunk must be a positive number of tokens, got {self.prefill_chunk!r}.")
        if self.draft_window is not None and not _whole(self.draft_window, 1):
            raise ValueError(f"draft_window must be a positive number of tokens, got {self.draft_window!r}.")
        if not (isinstance(self.graphs, bool) or self.graphs == "auto"):
            raise ValueError(f'graphs must be True, False or "auto", got {self.graphs!r}.')
        for name in ("lookup", "compile", "pack", "invariant"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
