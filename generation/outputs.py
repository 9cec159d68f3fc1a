"""What a call returns besides its texts: scores, logits, hidden states, attentions, one entry a new token as plain `generate` has it."""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation import GenerateDecoderOnlyOutput

from . past import Past  # fmt: skip  # isort: skip

Step = list[Tensor]  # of one token: a tensor a layer


class Outputs:
    """Collects them as the rounds go.

    Entry s belongs to the forward that made the s-th new token: entry 0 to the prompt, entry s > 0 to new token s - 1. In plain
    `generate` a forward reads one token; here a round's kept slots, the anchor and the kept nodes, are as many entries.
    Rows that have ended have zeros.

    Args:
        config: of the call. past: what it continues. config_of_target: says which layers slide.
    """

    def __init__(self, config: GenerationConfig, past: Past, config_of_target: PreTrainedConfig) -> None:
        rows, wanted = len(past.mask), bool(config.return_dict_in_generate)
        self.past, self.returns = past, wanted
        self.scores = _empty(rows, wanted and config.output_scores)
        self.logits = _empty(rows, wanted and config.output_logits)
        self.hidden_states = _empty(rows, wanted and config.output_hidden_states)
        self.attentions = _empty(rows, wanted and config.output_attentions)
        self.chunks: list[tuple[Step, Step]] = []  # hidden states and attentions of the prompt
        self.kinds, self.window = layer_kinds(config_of_target), getattr(config_of_target, "sliding_window", None)

    @property
    def inside(self) -> bool:
        """Whether anything from inside the target is wanted."""
        return self.hidden_states is not None or self.attentions is not None

    def read(self, seen: Any) -> None:
        """A chunk of the prompts was read; `seen` is what the forward returned."""
        if self.inside:
            self.chunks.append((list(seen.hidden_states or ()), list(seen.attentions or ())))

    def say(self, rows: list[int], slots: list[list[int]], logits: Tensor, scores: Tensor) -> None:
        """Tokens were said.

        Args:
            rows: those that live. slots: of each, the kept slots that said something. logits, scores: [R, n, V], as the target
                gave them and as processed.
        """
        for place, row in enumerate(rows):
            for slot in slots[place]:
                if self.scores is not None:
                    self.scores[row].append([scores[place, slot].clone()])
                if self.logits is not None:
                    self.logits[row].append([logits[place, slot].clone()])

    def verified(self, rows: list[int], slots: list[list[int]], places: list[list[int]], seen: Any) -> None:
        """The same, of what happened inside the target.

        Args:
            places: of each row, the slots of the cache that its last kept slot sees, in the order of the text. seen: what the
                forward returned, hidden states [R, n, hidden] and attentions [R, H, n, L] of each layer.

        Worked example: 5 tokens read before, slots 0, 2 kept: places 0 … 4, 5, 7. Slot 0 sees the first six, slot 2 all.
        """
        for at, row in enumerate(rows):
            if self.hidden_states is not None:
                self.hidden_states[row] += [[state[at, slot] for state in seen.hidden_states] for slot in slots[at]]
            if self.attentions is None:
                continue
            before = len(places[at]) - len(slots[at])
            for count, slot in enumerate(slots[at], before + 1):
                self.attentions[row].append([part[at, :, slot, places[at][:count]] for part in seen.attentions or ()])

    def result(self, sequences: Tensor) -> Tensor | GenerateDecoderOnlyOutput:
        """What the call returns."""
        if not self.returns:
            return sequences
        return GenerateDecoderOnlyOutput(
            sequences=cast(torch.LongTensor, sequences),  # transformers' name for a tensor of int64
            scores=_first_of_each(_together(self.scores)),
            logits=_first_of_each(_together(self.logits)),
            hidden_states=self._hidden_states(),
            attentions=self._attentions(),
            past_key_values=self.past.cache,
        )

    def _hidden_states(self) -> tuple | None:
        if self.hidden_states is None:
            return None
        layers = [torch.cat(parts, dim=1) for parts in zip(*(chunk[0] for chunk in self.chunks), strict=True)]
        shape = self.past.mask.shape[1] - self.past.cached
        prompt = []
        for layer in layers:
            out = layer.new_zeros(layer.shape[0], shape, layer.shape[2])
            for row, columns in enumerate(self._read_columns()):
                out[row, columns - self.past.cached] = layer[row, : len(columns)]
            prompt.append(out)
        later = tuple(tuple(state[:, None] for state in step) for step in _together(self.hidden_states))
        return (tuple(prompt), *later)

    def _read_columns(self) -> list[Tensor]:
        """The columns of the tokens that each row's prompt still had to read."""
        totals = self.past.mask.sum(dim=1).tolist()
        return [
            self.past.columns(row, total)[length:]
            for row, (total, length) in enumerate(zip(totals, self.past.lengths, strict=True))
        ]

    def _attentions(self) -> tuple | None:
        if self.attentions is None:
            return None
        if not self.chunks[0][1]:  # the target's attention tells none, as "sdpa"
            return ((),) * (1 + max(map(len, self.attentions)))
        width, read = self.past.mask.shape[1], self._read_columns()
        prompt = []
        for index in range(len(self.kinds)):
            heads = self.chunks[0][1][index].shape[1]
            out = self.chunks[0][1][index].new_zeros(len(read), heads, width - self.past.cached, width)
            start = 0
            for _, parts in self.chunks:
                part = parts[index]
                for row, columns in enumerate(read):
                    at = columns[start : start + part.shape[2]]
                    known = self.past.columns(row, min(part.shape[3], int(self.past.mask[row].sum())))
                    queries = (at - self.past.cached)[:, None]
                    out[row][:, queries, known] = part[row, :, : len(at), : len(known)]
                start += part.shape[2]
            prompt.append(self._as_wide_as_kept(out, index))
        steps = []
        for number in range(max(map(len, self.attentions))):
            step = [row[number] if number < len(row) else None for row in self.attentions]
            steps.append(tuple(self._step(step, index, width + number + 1) for index in range(len(self.kinds))))
        return (tuple(prompt), *steps)

    def _step(self, rows: list[Step | None], index: int, width: int) -> Tensor:
        """[R, H, 1, width] of one layer."""
        some = next(row[index] for row in rows if row is not None)
        out = some.new_zeros(len(rows), some.shape[0], 1, width)
        for row, step in enumerate(rows):
            if step is not None:
                out[row, :, 0, self.past.columns(row, step[index].shape[1])] = step[index]
        return self._as_wide_as_kept(out, index)

    def _as_wide_as_kept(self, attention: Tensor, index: int) -> Tensor:
        """A sliding layer of plain `generate` has the columns its cache still held: window - 1, and those just read."""
        if self.kinds[index] != "sliding_attention":
            return attention
        assert self.window is not None  # of every sliding layer
        queries, keys = attention.shape[2:]
        return attention[..., -(min(keys - queries, self.window - 1) + queries) :]


def layer_kinds(config: PreTrainedConfig) -> list[str]:
    """Of each layer of a target: "full_attention", "sliding_attention" or another."""
    window = getattr(config, "sliding_window", None)
    usual = "sliding_attention" if window else "full_attention"
    return getattr(config, "layer_types", None) or [usual] * config.num_hidden_layers


def _empty(rows: int, wanted: bool | None) -> list[list[Step]] | None:
    return [[] for _ in range(rows)] if wanted else None


def _together(rows: list[list[Step]] | None) -> tuple:
    """Steps of rows -> steps of batches; rows that have ended get zeros."""
    if rows is None:
        return ()
    steps = []
    for number in range(max(map(len, rows))):
        some = next(row[number] for row in rows if number < len(row))
        each = [row[number] if number < len(row) else [torch.zeros_like(part) for part in some] for row in rows]
        steps.append([torch.stack(parts) for parts in zip(*each, strict=True)])
    return tuple(steps)


def _first_of_each(steps: tuple) -> tuple | None:
    return tuple(step[0] for step in steps) or None
