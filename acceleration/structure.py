"""Whether a model is still built as it was when a view of it was made. Every call asks."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import nn

# Dictionaries of a module that decide what its forward does.
OWN = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Structure:
    """Everything in a model by identity: modules and their classes, parameters and their dtypes, buffers, hooks, plain attributes, what
    its configurations hold. Values of parameters and buffers are not read.

    The model itself is not held, so that it may hold this.

    Args:
        model: as it is now. left_out: attributes of the model that do not count. others: dictionaries besides, such as the globals
            of a function that was copied.
    """

    def __init__(self, model: nn.Module, left_out: Collection[str], others: Iterable[dict] = ()):
        modules = list(model.modules())
        self._modules, self._left_out = modules[1:], left_out
        self._classes = sorted({type(module) for module in modules}, key=id)
        self._parameters = list(model.parameters())
        configs = {
            id(config): vars(config) for config in (vars(m).get("config") for m in modules) if config is not None
        }
        own = [vars(module)[name] for module in modules for name in OWN]
        self._empty = [one for one in own if not one]  # most are: hooks that nobody has registered
        self._dicts = [*filter(None, own), *configs.values(), *others]
        dicts = self._with_top(model)
        self._size, self._content = sum(map(len, dicts)), list(self._walk(model, dicts))

    def unchanged(self, model: nn.Module) -> bool:
        """Whether the model is as it was."""
        dicts = self._with_top(model)
        if any(self._empty) or sum(map(len, dicts)) != self._size:
            return False
        return all(map(is_, self._walk(model, dicts), self._content))

    def _with_top(self, model: nn.Module) -> list[dict]:
        """All dictionaries that held something. The model's own is a copy, since the model may hold this object."""
        top = {name: value for name, value in vars(model).items() if name not in self._left_out}
        return [top, *map(vars, self._modules), *self._dicts]

    def _walk(self, model: nn.Module, dicts: list[dict]) -> Iterator[Any]:
        kinds = map(type, [model, *self._modules])
        forwards, dtypes = map(attrgetter("forward"), self._classes), map(attrgetter("dtype"), self._parameters)
        return chain(kinds, forwards, dtypes, chain.from_iterable(map(dict.values, dicts)))
