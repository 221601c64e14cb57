"""Turn the prompts of a task into token ids of the lengths it asks for."""

from __future__ import annotations

from llmtrack.engines.base import Engine
from llmtrack.errors import ScenarioError
from llmtrack.scenario import GenerateTask


def prompt_ids(engine: Engine, task: GenerateTask) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each prompt, repeated and cut to `task.prompt_tokens` where that is given.

    Raises:
        ScenarioError: a prompt has no tokens, or prompt and output exceed the model's context.
    """
    rows = []
    for text in task.prompts:
        ids = (
            engine.encode(text)
            if task.prompt_tokens is None
            else _repeat_to(engine, text, task.prompt_tokens)
        )
        if not ids:
            raise ScenarioError(
                f"prompt {text!r} has no tokens: a causal model needs at least one", "unsupported"
            )
        context = engine.info.context_length
        if context is not None and len(ids) + task.max_new_tokens > context:
            raise ScenarioError(
                f"a prompt of {len(ids)} tokens and {task.max_new_tokens} new ones exceed the context of {context} "
                f"tokens of {engine.info.model_id}: ask for at most {max(context - task.max_new_tokens, 0)} prompt tokens",
                "too_long",
            )
        rows.append(tuple(ids))
    return tuple(rows)


def _repeat_to(engine: Engine, text: str, length: int) -> list[int]:
    """Repeat a text until it has `length` tokens, and cut the tokens there."""
    if not text.strip():
        raise ScenarioError(
            "cannot repeat a blank text to a length in tokens: give some words", "unsupported"
        )
    copies = 1 + length // max(len(engine.encode(text)), 1)
    while len(ids := engine.encode(" ".join([text] * copies))) < length:
        copies += max(1, copies // 2)
    return ids[:length]
