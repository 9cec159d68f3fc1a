"""Whether tensors still hold the same values, without reading them whole."""

from collections.abc import Sequence
from operator import attrgetter, is_

import torch
from torch import Tensor

PLACES = 8  # of a tensor that are looked at, spread evenly over it
RUN = 64  # bytes looked at in each: a line of a CPU's cache costs as much as one value
DTYPE, COUNT = attrgetter("dtype"), attrgetter("_version")


class Watched:
    """A record of some tensors, which are contiguous and on the CPU.

    A change that torch counts is noticed, and so is other memory. torch does not count what is written through `.data`, as when
    adapters are merged: that is noticed where it changes one of the bytes looked at, 256 values in bfloat16. One tensor is enough.
    Where an adapter changes one value in a hundred of a single weight it is missed with a probability of 0.99 ** 256 = 0.08, where it
    changes as much of ten with 10 ** -11.

    Args:
        tensors: of any dtype. Their memory is kept for as long as this is, so that no other tensor gets the same address.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = list(tensors)
        self._counted = [tensor for tensor in self.tensors if not tensor.is_inference()]
        # apart, since what is concatenated must have the same number of dimensions
        parts = [_looked_at(tensor) for tensor in self.tensors]
        self._parts = [group for n in (1, 2) if (group := [part for part in parts if part.dim() == n])]
        self._memory, self._bytes = self._where(), self._look()

    def unchanged(self, tensors: Sequence[Tensor] | None = None) -> bool:
        """Whether nothing has changed, and `tensors`, unless None, are the very ones that were seen."""
        if tensors is not None and not (len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))):
            return False
        return self._where() == self._memory and self._same_bytes()

    def written(self) -> bool:
        """Whether values changed and torch did not count it. Then any tensor may have changed, also where nobody looked."""
        return self._where() == self._memory and not self._same_bytes()

    def _same_bytes(self) -> bool:
        return all(map(torch.equal, self._look(), self._bytes))

    def _where(self) -> list:
        """Address and dtype, and torch's count of changes."""
        return [*map(Tensor.data_ptr, self.tensors), *map(DTYPE, self.tensors), *map(COUNT, self._counted)]

    def _look(self) -> list[Tensor]:
        return [torch.cat(group) for group in self._parts]


def _looked_at(tensor: Tensor) -> Tensor:
    """The bytes of a tensor that are looked at, in its own memory: [PLACES, RUN], or all of a small one.

    Worked example: a weight [576, 576] in bfloat16 has 663,552 bytes; runs begin at multiples of (663,552 - 64) // 7 = 94,784, cut
    down to a multiple of 64, which is itself: the last begins at 663,488 and ends with the weight.
    """
    whole = tensor.detach().view(-1).view(torch.uint8)
    step = (len(whole) - RUN) // (PLACES - 1) // RUN * RUN
    return whole.as_strided((PLACES, RUN), (step, 1)) if step >= RUN else whole
