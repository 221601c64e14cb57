"""Tokenize a task's prompts to the requested lengths, and report which rules changed them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError
from llmtrack.measure.memory import check_context, check_memory
from llmtrack.spec.scenario import Scalar
from llmtrack.spec.task import GenerateTask


@dataclass(frozen=True)
class Prompts:
    """Tokenized prompts of a task.

    Attributes:
        ids: token ids of each prompt.
        facts: params to track: the rule that changed a prompt, truncated tokens, special tokens in the prompts.
    """

    ids: tuple[tuple[int, ...], ...]
    facts: Mapping[str, Scalar]
    warnings: tuple[str, ...]


def prompt_ids(engine: Engine, task: GenerateTask) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each prompt; raises as `tokenize_prompts`."""
    return tokenize_prompts(engine, task).ids


def tokenize_prompts(engine: Engine, task: GenerateTask) -> Prompts:
    """Tokenize a task's prompts by its rules for lengths, empty and overlong prompts.

    Raises:
        ScenarioError: a prompt has no tokens or exceeds the context, and no rule applies.
    """
    _check_requested_lengths(engine, task)
    rows = [_row(engine, task, text) for text in task.prompts]
    facts: dict[str, Scalar] = {}
    if rules := dict.fromkeys(row.rule for row in rows if row.rule):
        facts["prompt_rule"] = "; ".join(rules)
    if cut := sum(row.truncated for row in rows):
        facts["prompt_truncated_tokens"] = cut
    special = engine.info.special_tokens
    facts["special_tokens_in_prompt"] = sum(token in special.names for row in rows for token in row.ids)
    warnings = tuple(dict.fromkeys(f"prompt {row.rule}" for row in rows if row.truncated))
    return Prompts(tuple(row.ids for row in rows), facts, warnings)


def _check_requested_lengths(engine: Engine, task: GenerateTask) -> None:
    """Reject impossible lengths before any text is repeated or encoded."""
    length = task.prompt_tokens or 1
    if task.prompt_share is not None and engine.info.context_length is None:
        length = math.ceil(task.prompt_share * (task.max_prompt_tokens or 1))
    check_context(
        engine.info, 1 if task.overlong_prompt == "truncate" else task.prompt_tokens or 1, task.max_new_tokens
    )
    rows = min(task.batch_size or len(task.prompts), len(task.prompts))
    padded = -(-length // task.pad_to_multiple) * task.pad_to_multiple
    check_memory(engine.info, rows, padded + task.max_new_tokens, cached=task.use_cache)


@dataclass(frozen=True)
class _Row:
    """A tokenized prompt, the rule that changed it (or empty), and the number of tokens cut."""

    ids: tuple[int, ...]
    rule: str = ""
    truncated: int = 0


@dataclass(frozen=True)
class _Limit:
    """Maximum prompt tokens, and the reason."""

    tokens: int
    reason: str


def _row(engine: Engine, task: GenerateTask, text: str) -> _Row:
    context = engine.info.context_length
    # Prompt tokens that fit into the context beside the output.
    room = None if context is None else max(context - task.max_new_tokens, 0)
    limit = _limit(task, room)
    if task.prompt_share is not None:
        row = _fill(engine, task, text, room, limit)
    elif task.prompt_tokens is not None:
        row = _Row(tuple(_repeat_to(engine, text, task.prompt_tokens)))
    else:
        row = _Row(tuple(engine.encode(text)))
    if not text or not row.ids:
        row = _start(engine, task, text, row.ids)
    if limit is None or len(row.ids) <= limit.tokens:
        return row
    if task.overlong_prompt != "truncate" or limit.tokens < 1:
        raise _too_long(engine, task, len(row.ids), limit)
    return _truncate(engine, row.ids, limit)


def _limit(task: GenerateTask, room: int | None) -> _Limit | None:
    """Return the tighter limit of context and task."""
    maximum = task.max_prompt_tokens
    reason = "" if room is None else f"the context has room for {room:,}"
    if maximum is not None and (room is None or maximum < room):
        return _Limit(maximum, f"max_prompt_tokens={maximum}" + (f", {reason}" if reason else ""))
    return None if room is None else _Limit(room, reason)


def _fill(engine: Engine, task: GenerateTask, text: str, room: int | None, limit: _Limit | None) -> _Row:
    """Repeat a text to a share of the free context; a share up to 1 also respects the limit."""
    if limit is None or task.prompt_share is None:
        raise ScenarioError(
            f"{engine.info.model_id} does not say how long its context is: give max_prompt_tokens", kind="unsupported"
        )
    length = math.ceil(task.prompt_share * (limit.tokens if room is None else room))
    if task.prompt_share <= 1:
        length = min(length, limit.tokens)
    if length < 1:
        raise _too_long(engine, task, 1, limit)
    return _Row(tuple(_repeat_to(engine, text, length)), f"repeated to {length:,} tokens: {limit.reason}")


def _start(engine: Engine, task: GenerateTask, text: str, ids: tuple[int, ...]) -> _Row:
    """Handle a text without tokens; some tokenizers add a start token by themselves."""
    special = engine.info.special_tokens
    if ids:
        name = special.names.get(ids[0], str(ids[0]))
        return _Row(ids, f"empty: starts from {name}, which the tokenizer puts in front of every text")
    if task.empty_prompt != "bos":
        raise ScenarioError(f"prompt {text!r} has no tokens: a causal model needs at least one", kind="unsupported")
    if special.start_id is None:
        raise ScenarioError(
            f"prompt {text!r} has no tokens, and the tokenizer of {engine.info.model_id} has neither a BOS nor an "
            "EOS to start from",
            kind="unsupported",
        )
    start = special.start_id
    role = "the EOS, for want of a BOS" if start == special.eos_id != special.bos_id else "the BOS"
    return _Row((start,), f"empty: starts from {special.names.get(start, start)} ({role})")


def _truncate(engine: Engine, ids: tuple[int, ...], limit: _Limit) -> _Row:
    """Keep the last tokens that fit, after the prefix that the model expects."""
    special = engine.info.special_tokens
    prefix = special.prefix or ((special.bos_id,) if special.bos_id is not None else ())
    front = prefix[: limit.tokens] if ids[: len(prefix)] == prefix else ()
    tail = limit.tokens - len(front)
    truncated = front + (ids[-tail:] if tail else ())
    rule = f"truncated from {len(ids):,} tokens to the last {len(truncated):,}: {limit.reason}"
    return _Row(truncated, rule, len(ids) - len(truncated))


def _too_long(engine: Engine, task: GenerateTask, length: int, limit: _Limit) -> ScenarioError:
    """Return or raise the error for a prompt that exceeds the task's limit or the context."""
    check_context(engine.info, length, task.max_new_tokens)
    return ScenarioError(
        f"a prompt of {length} tokens is longer than the {limit.tokens} allowed: {limit.reason}", kind="too_long"
    )


def _repeat_to(engine: Engine, text: str, length: int) -> list[int]:
    """Repeat a text until it has `length` tokens, and cut it there."""
    if not text.strip():
        raise ScenarioError("cannot repeat a blank text to a length in tokens: give some words", kind="unsupported")
    copies = 1 + length // max(len(engine.encode(text)), 1)
    while len(ids := engine.encode(" ".join([text] * copies))) < length:
        copies += max(1, copies // 2)
    return ids[:length]
