"""Load a model folder back from MLflow and generate with it: the code behind models logged by llmtrack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from llmtrack.engine import Engine

MAX_NEW_TOKENS = 64


class GeneratingModel:
    """An engine with MLflow's `predict` interface."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def predict(self, model_input: pd.DataFrame | Sequence[str], params: Mapping[str, Any] | None = None) -> list[str]:
        """Continue each prompt greedily, one at a time.

        Args:
            model_input: prompts, or a table with the prompts in its first column.
            params: `max_new_tokens`, 64 by default.
        """
        from llmtrack.engine import GenerateRequest

        limit = int((params or {}).get("max_new_tokens", MAX_NEW_TOKENS))
        prompts = model_input.iloc[:, 0].tolist() if hasattr(model_input, "iloc") else list(model_input)
        texts = []
        for prompt in prompts:
            ids = tuple(self.engine.encode(prompt)) or (self.engine.info.special_tokens.start_id or 0,)
            request = GenerateRequest((ids,), limit, ignore_eos=False)
            texts.append(self.engine.decode(self.engine.generate(request, lambda: None).new_ids[0]))
        return texts


def _load_pyfunc(path: str) -> GeneratingModel:
    """Load a logged folder, or the model that it points at; called by MLflow under this name."""
    from llmtrack.engines.registry import load_engine, load_variant
    from llmtrack.spec.pointer import read_pointer

    folder = Path(path)
    if (pointer := read_pointer(folder)) is not None:
        engine = load_variant(pointer.variant)
        pointer.check(engine.info.tags)
        return GeneratingModel(engine)
    if any(folder.glob("*.onnx")):
        from llmtrack.engines.onnx import open_folder

        return GeneratingModel(open_folder(folder))
    return GeneratingModel(load_engine(str(folder)))
