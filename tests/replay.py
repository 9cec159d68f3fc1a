"""A recorder as CUDA's is, on any device: the same kernels on the same memory with the same numbers, again.

Every operation is noted with the very tensors it read and wrote; a replay runs them once more into those tensors. What Python knew is
frozen, and a tensor from outside that died meanwhile, whose memory a GPU would by then have given to something else, is an error.
"""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.steps, self.own = [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise RuntimeError("operation not permitted when stream is capturing")  # the host would have to wait
        out = function(*args, **kwargs)
        results = [value for value in tree_flatten(out)[0] if torch.is_tensor(value)]
        storages = {
            value.untyped_storage()._cdata for value in tree_flatten((args, kwargs))[0] if torch.is_tensor(value)
        }
        fresh = [value.untyped_storage()._cdata not in storages for value in results]
        self.steps.append((function, tree_map(self._hold, (args, kwargs)), out, all(fresh) and bool(results)))
        self.own |= {id(value) for value in results}
        self.kept = [*getattr(self, "kept", []), *results]  # a graph has a memory pool of its own
        return out

    def _hold(self, value):
        if not torch.is_tensor(value) or id(value) in self.own or isinstance(value, torch.nn.Parameter):
            return value
        return weakref.ref(value)

    def replay(self):
        def alive(value):
            if not isinstance(value, weakref.ref):
                return value
            tensor = value()
            assert tensor is not None, "a recording reads memory that was given back"
            return tensor

        for function, held, out, fresh in self.steps:
            args, kwargs = tree_map(alive, held)
            again = function(*args, **kwargs)
            if fresh:  # elsewhere it has just written where it wrote before
                for old, new in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
                    old.copy_(new)


def record(work):
    recording = Recording()
    with recording:
        outputs = work()
    return recording.replay, outputs
