"""Decode with a static cache and a compiled step; on a GPU the whole step, including the token choice, is one CUDA
graph.

Nothing changes shape between steps, and nothing waits for the host. Compiled code and graphs belong to one shape (rows,
prompt tokens, cache length) and are created before the first call of that shape.
"""

from __future__ import annotations

import inspect
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from transformers import StaticCache

from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.errors import ScenarioError, in_words
from llmtrack.models.positions import positions_of
from llmtrack.tensors.padding import pad_rows

Compiler = Callable[[Any], Any]

MOST_SHAPES = 8
"""Number of shapes to keep, each with its own cache."""

_LENGTHS = 64
"""Cache lengths are multiples of this, so that prompts of similar lengths share compiled code."""

RECOMPILATIONS = 1024
"""Raised recompilation limit: beyond its default, torch would silently stop compiling."""

_PARTS = 256
"""Maximum parts of a row of logits that are reduced in parallel."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {"coordinate_descent_tuning": True},
    "max-autotune": {"coordinate_descent_tuning": True, "max_autotune": True},
}


class StepModel(Protocol):
    """A model that computes the next token over a static cache.

    Attributes:
        name: name in tracked runs.
        static_prefill: whether an uncompiled pass over a prompt needs no host synchronization, so that it can be
            captured.
    """

    name: str
    static_prefill: bool

    def new_cache(self, rows: int, length: int, first_position: int) -> Any:
        """Return an empty cache for the given rows and tokens."""
        ...

    def begin(self, cache: Any) -> None:
        """Prepare a cache for a new prompt."""
        ...

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Return the (rows, vocabulary) logits after the last column, and store the keys and values of all columns.

        Args:
            ids: (rows, columns) token ids.
            positions: (rows, columns), position of each token in its row.
            slots: (columns,), cache slot of each column.
            mask: (rows, 1, columns, length) booleans: what each token may attend to.
            cache: from `new_cache`.
        """
        ...

    def compiled(self, compiler: Compiler) -> Callable[..., torch.Tensor]:
        """Return `logits` with its expensive parts compiled."""
        ...


class PlainModel:
    """A model whose products cannot be fused, as a `StepModel`: its own pass over transformers' static cache."""

    name = "as it is"
    static_prefill = False

    def __init__(self, model: Any) -> None:
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        self._optional = {"position_ids", "cache_position", "logits_to_keep"} & set(parameters)
        self._cache = "cache" if "cache" in parameters else "past_key_values"
        self._dtype = next(model.parameters()).dtype

    def new_cache(self, rows: int, length: int, first_position: int) -> StaticCache:
        """Return an empty cache for the given tokens; its rows are created in the first pass."""
        return StaticCache(config=self._model.config, max_cache_len=length)

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor, cache: StaticCache
    ) -> torch.Tensor:
        """See `StepModel.logits`."""
        optional = {"position_ids": positions, "cache_position": slots, "logits_to_keep": 1}
        bias = torch.zeros(mask.shape, dtype=self._dtype, device=mask.device)
        output = self._model(
            input_ids=ids,
            attention_mask=bias.masked_fill(~mask, torch.finfo(self._dtype).min),
            use_cache=True,
            **{self._cache: cache},
            **{name: value for name, value in optional.items() if name in self._optional},
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def begin(self, cache: StaticCache) -> None:
        """Reset a cache: in version 5 it counts its tokens itself."""
        cache.reset()

    def compiled(self, compiler: Callable[[Any], Any]) -> Callable[..., torch.Tensor]:
        """Return `logits`, compiled as a whole."""
        run: Callable[..., torch.Tensor] = compiler(self.logits)
        return run


@contextmanager
def compiling() -> Iterator[None]:
    """Allow torch to compile for as many shapes as are kept.

    Raises:
        ScenarioError: it cannot compile this model here.
    """
    try:
        with torch._dynamo.config.patch(recompile_limit=RECOMPILATIONS):
            yield
    except torch._dynamo.exc.TorchDynamoException as error:
        raise ScenarioError(
            f"torch.compile cannot compile this model here ({in_words(error)[:200]}): use compile=none",
            kind="unsupported",
        ) from error


def torch_compiler(mode: str) -> Compiler:
    """Return `torch.compile` for fixed shapes.

    Args:
        mode: `default`, or `max-autotune`, which tries more kernels.
    """
    return partial(torch.compile, fullgraph=True, dynamic=False, options=dict(_OPTIONS[mode]))


@dataclass(frozen=True)
class Shape:
    """Key of a compiled loop.

    Attributes:
        prompt: tokens per row, including pads.
        length: cache length in tokens.
    """

    rows: int
    prompt: int
    length: int
    ignore_eos: bool

    @classmethod
    def of(cls, request: GenerateRequest) -> Shape:
        """Return the shape of a request."""
        tokens = request.padded_length + request.max_new_tokens
        length = -(-tokens // _LENGTHS) * _LENGTHS
        return cls(len(request.prompt_ids), request.padded_length, length, request.ignore_eos)


class CompiledDecoding:
    """Greedy decoding by a compiled step.

    Args:
        first_position: position of a row's first token.
    """

    def __init__(
        self,
        model: StepModel,
        device: torch.device,
        *,
        pad_id: int,
        eos_ids: frozenset[int],
        first_position: int,
        compiler: Compiler,
    ) -> None:
        self._model, self._device = model, device
        self._pad_id, self._eos_ids, self._first_position = pad_id, eos_ids, first_position
        self._step, self._choose = model.compiled(compiler), compiler(_choose)
        self._loops: OrderedDict[Shape, _Loop] = OrderedDict()
        self.name = f"compiled, {model.name}"

    def prepare(self, request: GenerateRequest) -> float:
        """Compile and capture for a request if needed; return the seconds that it took.

        Raises:
            ScenarioError: no static cache can serve the request, or it cannot be compiled here.
        """
        if not request.use_cache:
            raise ScenarioError("compiled decoding needs the KV cache: use compile=none", kind="unsupported")
        if request.padding_side != "left" and len(set(map(len, request.prompt_ids))) > 1:
            raise ScenarioError(
                "compiled decoding pads on the left: use padding_side=left or compile=none", kind="unsupported"
            )
        shape = Shape.of(request)
        if shape in self._loops:
            self._loops.move_to_end(shape)
            return 0.0
        start = time.perf_counter()
        while len(self._loops) >= MOST_SHAPES:
            self._loops.popitem(last=False)
        with compiling():
            self._loops[shape] = self._make_loop(shape)
        return time.perf_counter() - start

    def generate(self, request: GenerateRequest, stamps: Stamps) -> torch.Tensor:
        """See `Decoding.generate`."""
        self.prepare(request)
        loop = self._loops[Shape.of(request)]
        ids, real = pad_rows(request.prompt_ids, self._pad_id, "left", request.padded_length)
        loop.begin(ids.to(self._device), real.to(self._device))
        new = torch.empty((request.max_new_tokens, len(ids)), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        ended = torch.zeros(len(ids), dtype=torch.bool)
        for number in range(request.max_new_tokens):
            (loop.step if number else loop.prefill)()
            new[number].copy_(loop.chosen, non_blocking=True)
            stamps.step()
            if not request.ignore_eos:
                stamps.wait()
                ended |= torch.isin(new[number], torch.tensor(sorted(self._eos_ids)))
                if ended.all():
                    break
        stamps.wait()
        return new[: number + 1].T

    def _make_loop(self, shape: Shape) -> _Loop:
        suppressed = sorted(self._eos_ids) if shape.ignore_eos else []
        loop = _Loop(
            self._model,
            self._step,
            self._choose,
            shape,
            torch.tensor(suppressed, dtype=torch.int64, device=self._device),
            self._first_position,
        )
        loop.compile()
        if self._device.type == "cuda":
            loop.capture()
        return loop


class _Loop:
    """Buffers of one shape, and the passes that use them."""

    def __init__(
        self,
        model: StepModel,
        step: Callable[..., torch.Tensor],
        choose: Callable[..., None],
        shape: Shape,
        suppressed: torch.Tensor,
        first_position: int,
    ) -> None:
        # A graph refers to the buffers it was captured with, so they are kept here.
        self._model, self._first_position, self._suppressed = model, first_position, suppressed
        device = suppressed.device
        self._ids = torch.zeros((shape.rows, 1), dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._ids)
        self._slots = torch.zeros(1, dtype=torch.int64, device=device)
        self._mask = torch.zeros((shape.rows, 1, 1, shape.length), dtype=torch.bool, device=device)
        self._prompt = torch.zeros((shape.rows, shape.prompt), dtype=torch.int64, device=device)
        self._prompt_positions = torch.zeros_like(self._prompt)
        self._prompt_slots = torch.arange(shape.prompt, device=device)
        self._prompt_mask = torch.zeros((shape.rows, 1, shape.prompt, shape.length), dtype=torch.bool, device=device)
        self._cache = model.new_cache(shape.rows, shape.length, first_position)
        state = (self._ids, self._positions, self._slots, self._mask)
        prompt = (self._prompt, self._prompt_positions, self._prompt_slots, self._prompt_mask)

        def prefill() -> None:
            choose(model.logits(*prompt, self._cache), suppressed, *state)

        def next_step() -> None:
            choose(step(*state, self._cache), suppressed, *state)

        self.prefill: Callable[[], None] = prefill
        self.step: Callable[[], None] = next_step

    @property
    def chosen(self) -> torch.Tensor:
        """The (rows,) ids chosen by the last pass, on the device."""
        return self._ids[:, 0]

    def begin(self, ids: torch.Tensor, real: torch.Tensor) -> None:
        """Load a prompt: its (rows, tokens) ids, and which of them are not pads."""
        length = ids.shape[1]
        positions = positions_of(real, self._first_position)
        self._prompt.copy_(ids)
        self._prompt_positions.copy_(positions)
        self._positions.copy_(positions[:, -1:])
        self._slots.fill_(length - 1)
        self._mask.zero_()
        self._mask[:, 0, 0, :length] = real.bool()
        self._prompt_mask.zero_()
        self._prompt_mask[:, 0, :, :length] = prompt_mask(real)
        self._model.begin(self._cache)

    def compile(self) -> None:
        """Run the passes once to compile them."""
        self.begin(self._prompt.clone(), torch.ones_like(self._prompt))
        self.prefill()
        self.step()

    def capture(self) -> None:
        """Capture the passes as CUDA graphs."""
        self.begin(self._prompt.clone(), torch.ones_like(self._prompt))
        # Handles and workspaces must be created outside of a capture.
        stream = torch.cuda.Stream(self._ids.device)
        stream.wait_stream(torch.cuda.current_stream(self._ids.device))
        with torch.cuda.stream(stream):
            self.prefill()
            self.step()
        torch.cuda.current_stream(self._ids.device).wait_stream(stream)
        self.begin(self._prompt.clone(), torch.ones_like(self._prompt))
        if self._model.static_prefill:
            self.prefill = _captured(self.prefill)
        self.step = _captured(self.step)


def prompt_mask(real: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a row each attends to, (rows, tokens, tokens) booleans.

    Args:
        real: (rows, tokens), 1 for tokens and 0 for pads.
    """
    square = torch.ones((real.shape[1], real.shape[1]), dtype=torch.bool, device=real.device)
    # A pad attends to itself: attention over nothing would be NaN and spread.
    return (square.tril() & real.bool()[:, None]) | torch.eye(len(square), dtype=torch.bool, device=real.device)


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _choose(
    logits: torch.Tensor,
    suppressed: torch.Tensor,
    ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor,
) -> None:
    """Choose the next token of each row, and prepare the buffers for the next step."""
    if len(suppressed):
        logits = logits.index_fill(1, suppressed, -torch.inf)
    ids.copy_(_highest(logits))
    positions.add_(1)
    slots.add_(1)
    mask.index_fill_(3, slots, True)


def _highest(logits: torch.Tensor) -> torch.Tensor:
    """Return the (rows, 1) ids of the highest logits, reduced in parts first: one long row would occupy a single
    processor.
    """
    rows, vocabulary = logits.shape
    parts = logits.view(rows, math.gcd(vocabulary, _PARTS), -1)
    within = parts.argmax(dim=-1)
    part = parts.amax(dim=-1).argmax(dim=-1, keepdim=True)
    return part * parts.shape[-1] + within.gather(1, part)
