"""The layers of a model, compiled once for all of them: what a GPU does between two products becomes one kernel.

Of a pass over thousands of tokens the products take three quarters; norms, activations and rotations, operator by operator,
most of the rest. What is compiled is what the model's own code says, rounded where that rounds, but summed in another order:
a loss differs by about 1e-5 of it in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from llmtrack.engines.torch.fast.compiled import Compiler, compiling


class CompiledLayers:
    """The repeated layers of a model, compiled for passes without a cache.

    Args:
        model: a transformers model in `eval()`.
        compiler: compiles a function; None: `torch.compile`.
    """

    def __init__(self, model: Any, compiler: Compiler | None = None) -> None:
        compiler = compiler or partial(torch.compile, dynamic=True, options={"emulate_precision_casts": True})
        layers = repeated_layers(model.base_model)
        run = compiler(type(layers[0]).forward) if layers else None
        self._compiled = [(layer, partial(run, layer)) for layer in layers if run]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers run compiled.

        Raises:
            ScenarioError: they cannot be compiled here.
        """
        for layer, compiled in self._compiled:
            layer.forward = compiled
        try:
            with compiling():
                yield
        finally:
            for layer, _ in self._compiled:
                del layer.forward


def repeated_layers(body: Any) -> list[Any]:
    """Return the modules of a model's body that come one after another and are of one kind; none if there are none such."""
    lists = (list(each) for each in _outermost_lists(body))
    return max((each for each in lists if len(set(map(type, each))) == 1), key=len, default=[])


def _outermost_lists(module: Any) -> Iterator[torch.nn.ModuleList]:
    """Yield the lists of modules that are in no other one, as those of experts are."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)
