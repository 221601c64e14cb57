"""Generate text with a loaded engine, without timing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmtrack.engine import Engine, GenerateRequest
from llmtrack.errors import UsageError, in_words
from llmtrack.measure.finite import check_finite
from llmtrack.measure.memory import check_batch
from llmtrack.spec.parameter import require_integer
from llmtrack.spec.task import GenerateTask

Messages = Sequence[Mapping[str, str]]
"""A conversation as in transformers: messages with a `role` (system, user, assistant) and a `content`."""


def generate_text(
    engine: Engine, prompt: str | Messages, max_new_tokens: int = GenerateTask.max_new_tokens, use_cache: bool = True
) -> str:
    """Continue a prompt greedily, up to the end of the text; see `generate_texts`."""
    return generate_texts(engine, (prompt,), max_new_tokens, use_cache)[0]


def generate_texts(
    engine: Engine,
    prompts: Sequence[str | Messages],
    max_new_tokens: int = GenerateTask.max_new_tokens,
    use_cache: bool = True,
    pad_to_multiple: int = 1,
) -> list[str]:
    """Continue several prompts greedily, in one batch.

    Args:
        prompts: at least one text, or the messages of a conversation, answered by the model's chat template.
        pad_to_multiple: pad the batch to a multiple of this many tokens.

    Raises:
        UsageError: a prompt has no tokens, or the model has no chat template for messages.
        ScenarioError: prompts and new tokens do not fit into the context or memory, or the logits are not finite.
    """
    if isinstance(prompts, str):  # one prompt, not one per character
        prompts = (prompts,)
    new_tokens = require_integer("max_new_tokens", max_new_tokens)
    texts = [prompt if isinstance(prompt, str) else chat_text(engine, prompt) for prompt in prompts]
    rows = tuple(tuple(engine.encode(text)) for text in texts)
    if not rows or not all(rows):
        raise UsageError("the prompt has no tokens: give some text")
    request = GenerateRequest(rows, new_tokens, use_cache=use_cache, ignore_eos=False, pad_to_multiple=pad_to_multiple)
    check_batch(engine.info, len(rows), max(map(len, rows)), new_tokens, padded=request.padded_length, cached=use_cache)
    new_ids = engine.generate(request, lambda: None).new_ids
    check_finite(engine, (request,), new_ids)
    return list(map(engine.decode, new_ids))


def chat_text(engine: Engine, messages: Messages) -> str:
    """Format a conversation by the tokenizer's chat template.

    Args:
        messages: each with `role` and `content`; usually ending with the user's.

    Raises:
        UsageError: a message is incomplete, the tokenizer has no chat template, or the template rejects them.
    """
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise UsageError('invalid prompt: give a text, or a list of {"role": ..., "content": ...}')
    if not all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in messages):
        raise UsageError('invalid message: give a list of {"role": ..., "content": ...}, or a text')
    # Engines of other packages may have no transformers tokenizer.
    tokenizer: Any = getattr(engine, "tokenizer", None)
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"{engine.info.model_id} has no chat template: it is not a chat model, or its tokenizer's files "
            "lack it; give plain text"
        )
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is part of the model and may fail in any way
        raise UsageError(f"the chat template rejects these messages: {in_words(error)}") from error
