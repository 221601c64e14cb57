"""Text in, text out, on a loaded engine: nothing is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmtrack.engine import Engine, GenerateRequest
from llmtrack.errors import UsageError, in_words
from llmtrack.measure.finite import check_finite
from llmtrack.measure.room import check_batch
from llmtrack.spec.parameter import whole_number
from llmtrack.spec.task import GenerateTask

Messages = Sequence[Mapping[str, str]]
"""A conversation as transformers takes it: messages with a `role` (system, user, assistant) and a `content`."""


def generate_text(
    engine: Engine,
    prompt: str | Messages,
    max_new_tokens: int = GenerateTask.max_new_tokens,
    use_cache: bool = True,
) -> str:
    """Return what a model says after a prompt, greedily, up to the end of its text; see `generate_texts`."""
    return generate_texts(engine, (prompt,), max_new_tokens, use_cache)[0]


def generate_texts(
    engine: Engine,
    prompts: Sequence[str | Messages],
    max_new_tokens: int = GenerateTask.max_new_tokens,
    use_cache: bool = True,
    pad_to_multiple: int = 1,
) -> list[str]:
    """Return what a model says after each of several prompts, in one batch.

    Args:
        engine: a loaded engine.
        prompts: what it goes on from, one at least; or the messages of a conversation, to which it answers by its chat template.
        max_new_tokens: new tokens at most, of each.
        use_cache: whether the KV cache is used.
        pad_to_multiple: the batch is padded to a multiple of so many tokens.

    Raises:
        UsageError: a prompt has no tokens, or the model has no template for messages.
        ScenarioError: prompts and new tokens do not fit into the model's context, or into memory, or the model computes no
            finite numbers.
    """
    if isinstance(prompts, str):  # which is not as many prompts as it has characters
        prompts = (prompts,)
    new_tokens = whole_number("max_new_tokens", max_new_tokens)
    texts = [prompt if isinstance(prompt, str) else chat_text(engine, prompt) for prompt in prompts]
    rows = tuple(tuple(engine.encode(text)) for text in texts)
    if not rows or not all(rows):
        raise UsageError("the prompt has no tokens: give some text")
    check_batch(engine.info, len(rows), max(map(len, rows)), new_tokens, cached=use_cache)
    request = GenerateRequest(rows, new_tokens, use_cache=use_cache, ignore_eos=False, pad_to_multiple=pad_to_multiple)
    new_ids = engine.generate(request, lambda: None).new_ids
    check_finite(engine, (request,), new_ids)
    return list(map(engine.decode, new_ids))


def chat_text(engine: Engine, messages: Messages) -> str:
    """Return a conversation as the text that the model was trained to answer to, by its tokenizer's chat template.

    Args:
        engine: a loaded engine.
        messages: each with its `role` and `content`; the last is usually the user's.

    Raises:
        UsageError: a message lacks one of them, the tokenizer has no chat template, or its template refuses them.
    """
    if not all(isinstance(each, Mapping) and {"role", "content"} <= each.keys() for each in messages):
        raise UsageError('a message is {"role": ..., "content": ...}: give a list of such, or a text')
    # What a backend of another package reads texts with is its own affair.
    tokenizer: Any = getattr(engine, "tokenizer", None)
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"{engine.info.model_id} has no chat template: it is no model for conversations, or its tokenizer's files "
            "lack it; give plain text"
        )
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template comes with the model, and can fail in any way
        raise UsageError(f"the chat template refuses these messages: {in_words(error)}") from error
