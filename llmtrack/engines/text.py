"""Text in, text out, on a loaded engine: nothing is timed."""

from __future__ import annotations

from llmtrack.engine import Engine, GenerateRequest
from llmtrack.errors import UsageError
from llmtrack.measure.room import check_batch


def generate_text(engine: Engine, prompt: str, max_new_tokens: int = 32, use_cache: bool = True) -> str:
    """Return what a model says after a prompt, greedily, up to the end of its text.

    Args:
        engine: a loaded engine.
        prompt: what it goes on from.
        max_new_tokens: new tokens at most.
        use_cache: whether the KV cache is used.

    Raises:
        UsageError: the prompt has no tokens.
        ScenarioError: prompt and new tokens do not fit into the model's context, or into memory.
    """
    ids = tuple(engine.encode(prompt))
    if not ids:
        raise UsageError("the prompt has no tokens: give some text")
    check_batch(engine.info, 1, len(ids), max_new_tokens, cached=use_cache)
    request = GenerateRequest((ids,), max_new_tokens, use_cache=use_cache, ignore_eos=False)
    return engine.decode(engine.generate(request, lambda: None).new_ids[0])
