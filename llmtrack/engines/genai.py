"""ONNX Runtime GenAI engine: a model converted by GenAI's own builder, run by GenAI's own loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from llmtrack.convert.conversion import Conversion, convert
from llmtrack.convert.genai import CONVERTER
from llmtrack.engine import Generated, GenerateRequest
from llmtrack.engines.base import ConvertedEngine, require_cpu, runtime_errors
from llmtrack.engines.onnx import weight_sizes
from llmtrack.engines.options import GenaiOptions
from llmtrack.engines.rows import Sharing
from llmtrack.models.positions import context_length
from llmtrack.onnx.lengths import windows
from llmtrack.spec.options import chosen
from llmtrack.spec.scenario import Variant

CONFIG = "genai_config.json"
RUNTIME = "ONNX Runtime GenAI"
PACKAGES = ("onnxruntime", "onnxruntime-genai")

_PADS = Sharing(0, "ONNX Runtime GenAI computes different text for rows with pads")


def load(variant: Variant) -> GenaiEngine:
    """Load the model of a variant, converting it first if needed.

    Options of the variant: `GenaiOptions`, and those of the recipe.

    Raises:
        MissingDependencyError: the genai extra is not installed, or the builder's environment cannot be created.
        UsageError: the device, quantization or an option is not supported.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: the model cannot be converted or run, or the dtype is not supported.
    """
    require_cpu(variant)
    threads = chosen(GenaiOptions, variant.options).used_threads
    return GenaiEngine(convert(CONVERTER, variant, GenaiEngine.open_folder), threads)


class GenaiEngine(ConvertedEngine):
    """Engine of a folder made by GenAI's builder: batches of equal lengths, prompts processed at once.

    Raises:
        ScenarioError: GenAI cannot run it.
    """

    def __init__(self, conversion: Conversion, threads: int) -> None:
        super().__init__(conversion, threads)
        folder = conversion.folder
        self._sharing = _PADS
        self._genai: Any = import_module("onnxruntime_genai")
        start = time.perf_counter()
        with runtime_errors(RUNTIME):
            config = self._genai.Config(str(folder))
            config.overlay(json.dumps(self._overlay()))
            self._model = self._genai.Model(config)
        seconds = time.perf_counter() - start
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["model"]
        decoder = settings["decoder"]
        # The builder counts no rotary scaling beyond the length that the config names.
        longest = int(settings["context_length"])
        graph = folder / decoder["filename"]
        self._info = self._describe(
            folder.glob(f"{graph.name}*"),
            weight_sizes(graph),
            seconds,
            {"weights_format": "onnx (genai)"},
            PACKAGES,
            kv_bytes_per_token=8
            * int(decoder["num_hidden_layers"] * decoder["num_key_value_heads"] * decoder["head_size"]),
            context_length=min(context_length(self._config) or longest, longest),
        )

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily by GenAI's loop; call `on_step` as the tokens of each step reach the host.

        Without the cache, the whole sequence is passed at each step.

        Raises:
            ScenarioError: the rows have pads.
        """
        lengths = [len(row) for row in request.prompt_ids]
        generator = self._generator(len(lengths), lengths[0] + request.max_new_tokens, request.ignore_eos)

        def step(ids: Any, mask: Any, cached: bool) -> Any:
            with runtime_errors(RUNTIME):
                if not cached:
                    generator.rewind_to(0)
                    generator.append_tokens(ids.astype(np.int32))
                generator.generate_next_token()
                return np.array(generator.get_next_tokens(), dtype=np.int64)

        return self._generate(request, on_step, step)

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""
        return self._logits(ids)

    def decoded_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `llmtrack.convert.fidelity.DecodingEngine`."""
        return self._logits(ids[:-1], ids[-1:])[-1]

    def close(self) -> None:
        """Free the model."""
        del self._model

    def _logits(self, *parts: Sequence[int]) -> torch.Tensor:
        """Return the logits (tokens, vocabulary) of the last part of a row, appended part by part."""
        with runtime_errors(RUNTIME):
            generator = self._generator(1, sum(map(len, parts)), ignore_eos=True)
            for part in parts:
                generator.append_tokens(np.array([part], dtype=np.int32))
            return torch.from_numpy(np.array(generator.get_output("logits")[0], dtype=np.float32))

    def _generator(self, rows: int, length: int, ignore_eos: bool) -> Any:
        """Create a generator up to a total length, for rows to be appended."""
        min_length = length if ignore_eos else 0
        # A cache with different layers needs room for their window, regardless of the generated length.
        max_length = max(length, *windows(self._config), 0)
        with runtime_errors(RUNTIME):
            params = self._genai.GeneratorParams(self._model)
            params.set_search_options(max_length=max_length, min_length=min_length, batch_size=rows, do_sample=False)
            return self._genai.Generator(self._model, params)

    def _overlay(self) -> dict[str, Any]:
        """Return the settings that override the folder's: threads, and the end and pad ids common to all backends."""
        decoder = {"session_options": {"intra_op_num_threads": self._threads}}
        return {"model": {"decoder": decoder, "eos_token_id": self._end_tokens, "pad_token_id": self._pad_id}}
