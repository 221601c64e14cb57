"""The ONNX Runtime GenAI engine: a model that GenAI's own builder made, run by GenAI's own loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.convert.build import converted, find
from llmtrack.convert.genai import CONVERTER, FLOAT
from llmtrack.engine import EngineInfo, Generated, GenerateRequest
from llmtrack.engines.fidelity import says_alike, says_the_same
from llmtrack.engines.host import NO_PEAK, HostEngine, require_cpu
from llmtrack.engines.onnx import weight_sizes
from llmtrack.engines.options import GenaiOptions
from llmtrack.engines.rows import Sharing
from llmtrack.errors import ScenarioError
from llmtrack.installed import installed_version
from llmtrack.measure.memory import reset_peak_rss
from llmtrack.models.context import context_length
from llmtrack.models.folder import model_folder
from llmtrack.models.reasons import one_line
from llmtrack.options import chosen
from llmtrack.scenario import Scalar, Variant
from llmtrack.tensors import tokens

if TYPE_CHECKING:
    import torch

CONFIG = "genai_config.json"

_PADS = Sharing(0, "ONNX Runtime GenAI computes another text where a row has pads")


def load(variant: Variant) -> GenaiEngine:
    """Load, and first convert if that was not done yet, the model of a variant.

    Options of the variant: `GenaiOptions`, and those of the recipe.

    Raises:
        MissingDependencyError: the genai extra is not installed, or the builder's environment cannot be made.
        UsageError: the device, quantization or an option is not there.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: the model cannot be converted or run, or the dtype is not there.
    """
    import torch

    recipe = find(variant)
    require_cpu(variant)
    told = chosen(GenaiOptions, variant.options)
    options = recipe.settled(variant.options) if recipe else {}
    arguments = recipe.apply(options) if recipe else FLOAT
    source = model_folder(variant.model, variant.revision)
    label = recipe.name if recipe else variant.dtype
    check = says_the_same if recipe is None else says_alike
    folder = converted(CONVERTER, source, arguments, label, partial(check, open_folder))
    threads = told.threads or torch.get_num_threads()
    facts: dict[str, Scalar] = {
        **source.facts,
        **options,
        "threads": threads,
        "weights_format": "onnx (genai)",
    }
    versions = {name: installed_version(name) for name in ("onnxruntime", "onnxruntime-genai")}
    return GenaiEngine(
        folder,
        threads,
        model_id=source.model_id,
        dtype_label=f"{recipe.dtype} weights (float32)" if recipe else variant.dtype,
        facts=facts,
        tags={**source.tags, **versions},
        warnings=source.warnings,
    )


def open_folder(folder: Path) -> GenaiEngine:
    """Open the folder of a converted model as it is, with one thread.

    Raises:
        ScenarioError: it cannot be run.
    """
    return GenaiEngine(folder, 1, model_id=str(folder), dtype_label="as stored")


class GenaiEngine(HostEngine):
    """A folder of GenAI's builder as an engine: batches of rows of one length, prompts computed at once.

    Args:
        folder: graph, GenAI's config, and the model's own config and tokenizer.
        threads: threads that compute one operation.
        model_id: what to call it in tracked runs.
        dtype_label: what the weights are stored as.
        facts: params to track.
        tags: provenance to track.
        warnings: findings in words.

    Raises:
        ScenarioError: GenAI cannot run it.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        *,
        model_id: str,
        dtype_label: str,
        facts: dict[str, Scalar] | None = None,
        tags: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        super().__init__(folder)
        self._genai: Any = import_module("onnxruntime_genai")
        start = time.perf_counter()
        try:
            config = self._genai.Config(str(folder))
            config.overlay(json.dumps(self._overlay(threads)))
            self._model = self._genai.Model(config)
        except Exception as error:
            raise ScenarioError(
                f"ONNX Runtime GenAI cannot run it: {one_line(error)[:300]}", "unsupported"
            ) from error
        seconds = time.perf_counter() - start
        if not reset_peak_rss():
            warnings += (NO_PEAK,)
        decoder = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["model"]["decoder"]
        graph = folder / decoder["filename"]
        stored, read = weight_sizes(graph)
        self._info = EngineInfo(
            model_id=model_id,
            device="cpu",
            dtype_label=dtype_label,
            model_size_bytes=stored,
            step_weight_bytes=read,
            kv_bytes_per_token=8
            * int(decoder["num_hidden_layers"] * decoder["num_key_value_heads"] * decoder["head_size"]),
            context_length=context_length(self._config),
            vocab_size=self._vocab_size,
            load_time_s=seconds,
            file_size_bytes=sum(path.stat().st_size for path in folder.glob(f"{graph.name}*")),
            facts=dict(facts or {}) | {"architecture": self.architecture},
            tags=dict(tags or {}),
            warnings=warnings + _PADS.warnings,
            special_tokens=tokens.special_tokens(self.tokenizer),
            folder=str(folder),
        )

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily by GenAI's loop, calling `on_step` as the tokens of each step are on the host.

        Without the cache, everything so far is given again at each step.

        Raises:
            ScenarioError: the rows have pads.
        """
        lengths = [len(row) for row in request.prompt_ids]
        _PADS.check(lengths, request.padded_length, request.max_new_tokens)
        ids = np.array(request.prompt_ids, dtype=np.int32)
        generator = self._generator(len(ids), lengths[0] + request.max_new_tokens, request.ignore_eos)
        ended = np.zeros(len(ids), dtype=bool)
        chosen_ids: list[Any] = []
        generator.append_tokens(ids)
        for _ in range(request.max_new_tokens):
            if chosen_ids and not request.use_cache:
                generator.rewind_to(0)
                generator.append_tokens(np.concatenate([ids, np.stack(chosen_ids, axis=1)], axis=1))
            generator.generate_next_token()
            token = np.array(generator.get_next_tokens(), dtype=np.int32)
            on_step()
            chosen_ids.append(token)
            if not request.ignore_eos:
                ended |= np.isin(token, list(self._eos_ids))
                if ended.all():
                    break
        eos_ids = frozenset() if request.ignore_eos else self._eos_ids
        rows = np.stack(chosen_ids, axis=1).tolist()
        return Generated(tuple(tokens.until_eos(row, eos_ids) for row in rows))

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after each token of one row; see `Engine.next_token_logits`."""
        import torch

        generator = self._generator(1, len(ids) + 1, ignore_eos=True)
        generator.append_tokens(np.array([ids], dtype=np.int32))
        return torch.from_numpy(np.array(generator.get_output("logits")[0], dtype=np.float32))

    def close(self) -> None:
        """Free the model."""
        del self._model

    def _generator(self, rows: int, length: int, ignore_eos: bool) -> Any:
        """Return what generates up to a length in all, for rows that are yet to be given."""
        params = self._genai.GeneratorParams(self._model)
        shortest = length if ignore_eos else 0
        params.set_search_options(max_length=length, min_length=shortest, batch_size=rows, do_sample=False)
        return self._genai.Generator(self._model, params)

    def _overlay(self, threads: int) -> dict[str, Any]:
        """Return what is set otherwise than in the folder: threads, and the ends and pads that every backend has."""
        options = {"session_options": {"intra_op_num_threads": threads}}
        ends = sorted(each for each in self._eos_ids if each < self._vocab_size)
        return {"model": {"decoder": options, "eos_token_id": ends, "pad_token_id": self._pad_id}}
