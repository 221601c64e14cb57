"""Load a model's folder back from MLflow, and let it go on with texts: the code behind models that llmtrack logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from llmtrack.engine import Engine

MAX_NEW_TOKENS = 64


class GeneratingModel:
    """An engine with the `predict` that MLflow asks for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def predict(self, model_input: pd.DataFrame | Sequence[str], params: Mapping[str, Any] | None = None) -> list[str]:
        """Return what the model goes on with after each prompt, greedily, each prompt alone.

        Args:
            model_input: prompts, or a table whose first column holds them.
            params: `max_new_tokens`, 64 if it is not given.
        """
        from llmtrack.engine import GenerateRequest

        limit = int((params or {}).get("max_new_tokens", MAX_NEW_TOKENS))
        prompts = model_input.iloc[:, 0].tolist() if hasattr(model_input, "iloc") else list(model_input)
        found = []
        for prompt in prompts:
            ids = tuple(self.engine.encode(prompt)) or (self.engine.info.special_tokens.start_id or 0,)
            request = GenerateRequest((ids,), limit, ignore_eos=False)
            found.append(self.engine.decode(self.engine.generate(request, lambda: None).new_ids[0]))
        return found


def _load_pyfunc(path: str) -> GeneratingModel:
    """Load a logged folder; MLflow calls this by its name."""
    folder = Path(path)
    if any(folder.glob("*.onnx")):
        from llmtrack.engines.onnx import open_folder

        return GeneratingModel(open_folder(folder))
    from llmtrack.engines.registry import load_engine

    return GeneratingModel(load_engine(str(folder)))
