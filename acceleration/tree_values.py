"""Where the values of a token tree lie while they are summed, so that every path adds up as if it were read token by token.

Matrix units add up products in tiles of 32 keys: within a tile even and odd places apart, in order, and tile after tile. So a node's
value must be in the same place of the same tile as in a chain, and two branches cannot share a tile in which they differ. Each gets a
copy of it; tiles whose weights are 0 change no sum. Softmax, too, adds by place, so scores are put in order first.

Worked example, tiles of 4 instead of 32, a text of 6 tokens, an anchor a and below it b with child c, and d: positions 6, 7, 8 and 7.
Tile 0 is the text's. Tile 1 comes twice, as (4, 5, a, b) and (4, 5, a, d), tile 2 once, as (c). The weights of c, by position, are
w0 … w8: c takes tile 0, the first tile 1 and tile 2, d tile 0 and the second tile 1.
"""

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
        self._spread: tuple[Tensor, Tensor] | None = None

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

    def spread(self, weights: Tensor, value: Tensor, groups: int, shared: int) -> tuple[Tensor, Tensor]:
        """Weights [R G, g w, L] by position and values [R G, L, d] by slot -> the same, both by the tiles of all branches."""
        batch, queries, slots = weights.shape
        if self._spread is None:
            self._spread = self._indices(batch // groups, groups, shared, slots)
        blocks, places = self._spread
        weights = weights.view(-1, TILE).index_select(0, blocks).view(batch, queries, -1)
        return weights, value.reshape(batch * slots, -1).index_select(0, places).view(batch, weights.shape[2], -1)

    def _indices(self, rows: int, groups: int, shared: int, slots: int) -> tuple[Tensor, Tensor]:
        """Tiles of the weights, in all rows of all heads, and slots of the values."""
        width, empty = self.paths.shape[1], slots // TILE - 1
        columns = max(length // TILE + len(tiles) for length, (tiles, _) in zip(self.lengths, self.places, strict=True))
        columns += columns % 2
        blocks = np.full((rows, width, columns), empty)
        places = np.zeros((rows, columns, TILE), dtype=np.int64)
        for row, (length, (tiles, used)) in enumerate(zip(self.lengths, self.places, strict=True)):
            whole = length // TILE
            blocks[row, :, :whole] = np.arange(whole)
            places[row, :whole] = np.arange(whole * TILE).reshape(whole, TILE)
            for column, (tile, nodes) in enumerate(tiles, whole):
                first = max(length, tile * TILE)  # position of the tile's first node
                places[row, column, : first - tile * TILE] = np.arange(tile * TILE, first)
                places[row, column, first - tile * TILE :][: len(nodes)] = length + np.array(nodes)
            for node, own in enumerate(used):
                for column in own:
                    blocks[row, node, whole + column] = tiles[column][0]
        line = np.arange(rows * groups * shared * width).reshape(rows, groups, shared, width, 1)
        batch = np.arange(rows * groups).reshape(rows, groups, 1)
        all_blocks = line * (slots // TILE) + blocks[:, None, None]
        all_places = batch * slots + places.reshape(rows, 1, -1)
        return torch.from_numpy(all_blocks.reshape(-1)), torch.from_numpy(all_places.reshape(-1))


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
