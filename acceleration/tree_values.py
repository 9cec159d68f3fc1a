"""Where the values of a token tree lie while they are summed, so that every path adds up as if it were read token by token.

Matrix units add up products in tiles of 32 keys: within a tile even and odd places apart, in order, and tile after tile. So a node's
value must be in the same place of the same tile as in a chain, and two branches cannot share a tile in which they differ. Each gets a
copy of it; tiles whose weights are 0 change no sum. Softmax, too, adds by place, so scores are put in order first.

Worked example, tiles of 4 instead of 32, a text of 6 tokens, an anchor a and below it b with child c, and d: positions 6, 7, 8 and 7.
Tile 0 is the text's. Tile 1 comes twice, as (4, 5, a, b) and (4, 5, a, d), tile 2 once, as (c). The weights of c, by position, are
w0 … w8: c takes tile 0, the first tile 1 and tile 2, d tile 0 and the second tile 1.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

TILE = 32

Tile = tuple[int, list[int]]  # number of the tile, nodes in it by position


class TreeValues:
    """The trees of one verification.

    Letters: R rows, w nodes of the widest row with its anchor, which is node 0; a node's slot is the text's length + its number.

    Args:
        lengths: of the R texts. depths: [R, w], 0 for the anchor. ancestors: [R, w, w], itself included.
        counts: nodes of each row that count, without its anchor.
    """

    def __init__(self, lengths: list[int], depths: np.ndarray, ancestors: np.ndarray, counts: list[int]):
        self.lengths = lengths
        self.levels = int(depths.max()) + 1
        self.paths = _paths(depths, ancestors, self.levels)
        self.places = [
            _tiles(length, path[: count + 1], depth[: count + 1])
            for length, path, depth, count in zip(lengths, self.paths, depths, counts, strict=True)
        ]
        self._nodes: list[Tensor] = []
        self._spread: list[tuple[Tensor, Tensor]] | None = None

    @property
    def end(self) -> int:
        """Slots that must be visible: a tile behind the last one in use is empty, and taken where a node has no part in a tile.

        Worked example: a text of 94 tokens, three levels: positions 94, 95, 96, the last in tile 3, so tile 4 must be there: 160.
        """
        return ((max(self.lengths) + self.levels - 1) // TILE + 2) * TILE

    def put_in_order(self, scores: Tensor, groups: int, shared: int) -> None:
        """Scores [R G, g w, L] of slots become, in place, scores of the positions on each node's path. What is beyond must be masked."""
        if not self._nodes:
            shape = groups, shared * self.paths.shape[1], self.levels
            self._nodes = [torch.from_numpy(np.tile(path, (shared, 1))).expand(shape) for path in self.paths]
        width = self.paths.shape[1]
        for row, (length, nodes) in enumerate(zip(self.lengths, self._nodes, strict=True)):
            part = scores[row * groups : (row + 1) * groups, :, length : length + max(width, self.levels)]
            part[..., : self.levels] = part.gather(2, nodes)

    def spread(
        self, weights: Tensor, value: Tensor, groups: int, shared: int, piece: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights [R G, g w, L] by position and values [R G, L, d] by slot -> both by the tiles of all branches.

        Yields:
            those of the first `piece` positions, of the next, …
        """
        batch, queries, slots = weights.shape
        if self._spread is None:
            self._spread = list(self._indices(batch // groups, groups, shared, slots, piece // TILE))
        weights, value = weights.view(-1, TILE), value.reshape(batch * slots, -1)
        for blocks, places in self._spread:
            yield (
                weights.index_select(0, blocks).view(batch, queries, -1),
                value.index_select(0, places).view(batch, len(places) // batch, -1),
            )

    def _indices(self, rows: int, groups: int, shared: int, slots: int, piece: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tiles of the weights, in all rows of all heads, and slots of the values, for each piece of so many tiles."""
        width, tiles = self.paths.shape[1], slots // TILE
        line = np.arange(rows * groups * shared * width).reshape(rows, groups, shared, width, 1)
        batch = np.arange(rows * groups).reshape(rows, groups, 1)
        for start in range(0, tiles - 1, piece):
            columns = [self._columns(row, start, start + piece) for row in range(rows)]
            most = max(map(len, columns))
            blocks = np.full((rows, width, most + most % 2), tiles - 1)  # the last tile is empty
            places = np.zeros((rows, most + most % 2, TILE), dtype=np.int64)
            for row, own in enumerate(columns):
                for column, (tile, nodes, users) in enumerate(own):
                    blocks[row, users, column] = tile
                    places[row, column] = self._slots(row, tile, nodes)
            yield (
                torch.from_numpy((line * tiles + blocks[:, None, None]).reshape(-1)),
                torch.from_numpy((batch * slots + places.reshape(rows, 1, -1)).reshape(-1)),
            )

    def _columns(self, row: int, start: int, end: int) -> list[tuple[int, list[int], Any]]:
        """Of a row and the tiles from start to end: (tile, nodes in it, nodes that use it)."""
        whole = self.lengths[row] // TILE
        tiles, used = self.places[row]
        found: list[tuple[int, list[int], Any]] = [(tile, [], slice(None)) for tile in range(start, min(end, whole))]
        for number, (tile, nodes) in enumerate(tiles):
            if start <= tile < end:
                found.append((tile, nodes, [node for node, own in enumerate(used) if number in own]))
        return found

    def _slots(self, row: int, tile: int, nodes: list[int]) -> np.ndarray:
        """[TILE] where the keys of a tile lie; behind the text those of its nodes, and any slot where there is none."""
        length, first = self.lengths[row], tile * TILE
        slots = np.arange(first, first + TILE)
        behind = slots[max(length - first, 0) :]
        behind[:] = 0
        behind[: len(nodes)] = length + np.array(nodes, dtype=np.int64)
        return slots


def _paths(depths: np.ndarray, ancestors: np.ndarray, levels: int) -> np.ndarray:
    """[R, w, levels]: the node of each depth above each node, itself included; 0 below it."""
    at = depths[:, None, :, None] == np.arange(levels)  # [R, 1, w, levels]
    return (ancestors[..., None] & at).argmax(axis=2)


def _tiles(length: int, paths: np.ndarray, depths: np.ndarray) -> tuple[list[Tile], list[list[int]]]:
    """The tiles that the nodes of one tree need, each branch its own, and which of them each node uses.

    Deepest nodes first: a node above them uses theirs, as its own weights are 0 behind itself.
    """
    tiles: list[Tile] = []
    used: list[list[int]] = [[] for _ in paths]
    order = sorted(range(len(paths)), key=lambda node: -depths[node])
    for tile in range(length // TILE, (length + int(depths.max())) // TILE + 1):
        low, high = max(0, tile * TILE - length), (tile + 1) * TILE - length
        known: dict[tuple[int, ...], int] = {}
        for node in order:
            nodes = tuple(paths[node, low : min(high, int(depths[node]) + 1)].tolist())
            if not nodes:
                continue
            if nodes not in known:
                tiles.append((tile, list(nodes)))
                known = {nodes[:end]: len(tiles) - 1 for end in range(1, len(nodes) + 1)} | known
            used[node].append(known[nodes])
    return tiles, used
