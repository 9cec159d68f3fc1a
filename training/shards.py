"""Distilled answers on disk, and as a data set.

A shard is one batch of answers, in two files of the same name:
    shard-00017.parquet      one row an answer: prompt, answer (text), input_ids (prompt and answer), prompt_length,
                             finished (whether it ended by itself), temperature; `datasets` reads it
    shard-00017.safetensors  optional: features [N, F * D] bfloat16 of all its tokens, row after row, and last_hidden [N, D];
                             the last token of an answer was never read by the target: zeros
The Parquet file is put in place last: a shard that has one is complete.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset

ROW = pyarrow.schema(
    {
        "prompt": pyarrow.string(),
        "answer": pyarrow.string(),
        "input_ids": pyarrow.list_(pyarrow.int32()),
        "prompt_length": pyarrow.int32(),
        "finished": pyarrow.bool_(),
        "temperature": pyarrow.float32(),
    }
)


def shard_path(folder: Path, number: int) -> Path:
    """The Parquet file of a shard."""
    return folder / f"shard-{number:05d}.parquet"


def write_shard(path: Path, rows: list[dict], tensors: dict[str, Tensor]) -> None:
    """Write a shard so that a crash leaves either all of it or none.

    Args:
        path: of the Parquet file. rows: of the table. tensors: `features` and `last_hidden`, or none.
    """
    if tensors:
        with replacing(path.with_suffix(".safetensors")) as part:
            _save(tensors, part)
    table = io.BytesIO()  # pyarrow aborts the process when the disk fills up under it
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=ROW), table)
    with replacing(path) as part:
        part.write_bytes(table.getbuffer())


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # not an OSError, even when the disk is full
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write that takes its name only when it is whole and on the disk; removed when writing fails."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class DistilledAnswers(Dataset):
    """Sequences of some shards; stored features stay on disk until a sequence is read.

    Items: `index` (place in this data set), `input_ids` [T] int64, `prompt_length`, and where they are read `features`
    [T, F * D] and `last_hidden` [T, D], bfloat16.

    Args:
        shards: Parquet files. max_length: tokens a sequence is cut to. min_answer: answers with fewer tokens are left out and
            counted in `too_short`.
        layer_ids: target layers whose stored features to read; None leaves them on disk. last_hidden: also read these.
        required: whether features must be stored; without them `has_features` is False.

    Raises:
        `ValueError`: features were stored for other layers, or lack what is asked for.
    """

    def __init__(
        self,
        shards: list[Path],
        max_length: int,
        min_answer: int,
        layer_ids: list[int] | None = None,
        last_hidden: bool = False,
        required: bool = False,
    ):
        self.shards, self.too_short = shards, 0
        self.names = ["features", *(["last_hidden"] if last_hidden else [])]
        stored = [path.with_suffix(".safetensors") for path in shards]
        self.has_features = layer_ids is not None and (required or stored[0].is_file())
        if self.has_features:
            self._check_features(stored, layer_ids)
        self.stored = stored
        self.handles: dict[int, safe_open] = {}
        self.ids, self.rows = [], []
        for number, path in enumerate(shards):
            start = 0
            table = pyarrow.parquet.read_table(path, columns=["input_ids", "prompt_length"]).to_pydict()
            self.ids.append(torch.tensor([i for row in table["input_ids"] for i in row], dtype=torch.int32))
            for row, prompt in zip(table["input_ids"], table["prompt_length"], strict=True):
                length = min(len(row), max_length)
                if length - prompt >= min_answer:
                    self.rows.append((number, start, length, prompt))
                else:
                    self.too_short += 1
                start += len(row)

    def _check_features(self, stored: list[Path], layer_ids: list[int] | None) -> None:
        absent = [path.name for path in stored if not path.is_file()]
        if absent:
            raise ValueError(
                f"No stored features for {len(absent)} shards ({', '.join(absent[:3])} …): distil with --features, or train "
                "with objective.features: online."
            )
        provenance = json.loads((stored[0].parent / "provenance.json").read_text(encoding="utf-8"))
        if provenance["target_layer_ids"] != layer_ids:
            raise ValueError(
                f"The shards hold features of the target's layers {provenance['target_layer_ids']}, the drafter reads "
                f"{layer_ids}: set drafter.target_layer_ids, distil again, or train with objective.features: online."
            )
        with safe_open(stored[0], framework="pt") as file:
            lacking = [name for name in self.names if name not in file.keys()]  # noqa: SIM118 (not a dict)
        if lacking:
            raise ValueError(
                f"{stored[0].name} lacks {', '.join(lacking)}, which soft labels need: distil with --last-hidden, or train with "
                "objective.features: online."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        shard, start, length, prompt = self.rows[index]
        item = {
            "index": index,
            "input_ids": self.ids[shard][start : start + length].long(),
            "prompt_length": prompt,
        }
        if self.has_features:
            if shard not in self.handles:
                self.handles[shard] = safe_open(self.stored[shard], framework="pt")
            handle = self.handles[shard]
            item |= {name: handle.get_slice(name)[start : start + length] for name in self.names}
        return item

    def __getstate__(self) -> dict:
        """Open files stay behind: a worker process opens its own."""
        return {**self.__dict__, "handles": {}}

    def token_counts(self) -> Counter:
        """How often each token stands in an answer."""
        counts: Counter = Counter()
        for shard, start, length, prompt in self.rows:
            counts.update(self.ids[shard][start + prompt : start + length].tolist())
        return counts
