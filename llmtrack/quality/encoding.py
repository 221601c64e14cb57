"""Encode text for scoring: start tokens, truncation, and the text that the predicted tokens cover."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmtrack.engine import Engine, Tokenized
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.host.formatting import GIB
from llmtrack.measure.memory import available_bytes

# Peak memory of a Rust tokenizer per character of a text, as measured.
_TOKENIZING_BYTES = 150
_LONG = 100_000
"""Characters from which the memory is checked: asking for it takes milliseconds, and a corpus has thousands of texts."""


@dataclass(frozen=True)
class Encoded:
    """A text ready to be scored.

    Attributes:
        ids: its tokens; the first ones are given, the others are predicted.
        given: number of given tokens: everything before the text, or the text's first token.
        text: UTF-8 bytes of the original text covered by the predicted tokens, which may begin or end within a
            character; None if the tokenizer does not report offsets.
        cut: tokens truncated at the end.
        unknown: predicted tokens for text outside of the vocabulary.
        lost: bytes of the kept text that no token represents.
    """

    ids: list[int]
    given: int
    text: bytes | None
    cut: int
    unknown: int = 0
    lost: int = 0

    @property
    def predicted(self) -> int:
        """Number of predicted tokens."""
        return max(len(self.ids) - self.given, 0)

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the predicted text; None if the tokenizer does not report offsets."""
        return None if self.text is None else len(self.text)

    @property
    def words(self) -> int | None:
        """White-space separated words of the predicted text, partial words at its ends included."""
        return None if self.text is None else len(self.text.decode("utf-8", "replace").split())


def tokens_digest(rows: Iterable[Encoded]) -> str:
    """Digest the tokens of rows to 16 hex digits."""
    return digest_of(np.asarray(row.ids, dtype="<i8").tobytes() for row in rows)


def digest_of(parts: Iterable[bytes]) -> str:
    """Digest parts, their order and boundaries to 16 hex digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def unknown_warning(unknown: int, of: int, tokens: str, consequence: str) -> tuple[str, ...]:
    """Warn if some `of` these tokens stand for text outside of the vocabulary."""
    if not unknown:
        return ()
    return (f"{unknown} of {of} {tokens} represent text outside of the vocabulary: {consequence}",)


def lost_warning(lost: int, consequence: str) -> tuple[str, ...]:
    """Warn if no token represents some bytes of a text."""
    return (f"the tokenizer has no token for {lost} bytes of the text: {consequence}",) if lost else ()


def encode_text(engine: Engine, text: str, bos_rule: str, keep: int | None = None) -> Encoded:
    """Encode a text by a `bos_rule`.

    - `tokenizer`: with the prefix that the tokenizer adds by itself: a beginning-of-sequence token (BOS) or nothing.
    - `model`: exactly one BOS, or the end-of-sequence token if the tokenizer has no BOS, so that every token of the
      text is predicted, as lm-evaluation-harness does for a rolling log-likelihood.
    - `none`: no prefix; the first token of the text is given.

    A text that itself begins with such a token gets no second one. Suffixes of the tokenizer are dropped.

    At most `keep` tokens are kept, the prefix included; None: all.

    Raises:
        UsageError: the `bos_rule` is unknown, or `model` and the tokenizer has neither token.
        ScenarioError: the text does not fit into this machine's memory.
    """
    if len(text) >= _LONG:
        _check_memory(len(text))
    if bos_rule not in _ENCODERS:
        raise UsageError(f"no bos_rule {bos_rule!r}: use one of {', '.join(_ENCODERS)}")
    tokens = _ENCODERS[bos_rule](engine, text)
    ids = tokens.ids[:keep]
    given, cut = max(tokens.added, 1), len(tokens.ids) - len(ids)
    unknown = _unknown(engine, text, tokens, range(given, len(ids)))
    if tokens.spans is None:
        # A text known to be complete needs no offsets.
        return Encoded(ids, given, text.encode() if tokens.added and not cut else None, cut, unknown)
    data, spans = text.encode(), np.reshape(tokens.spans[: len(ids)], (-1, 2))
    predicted = _covered(data, spans[given:])
    first = int(spans[0, 1]) if len(spans) and not tokens.added else 0
    last = int(spans[-1, 1]) if cut else len(data)
    return Encoded(ids, given, predicted, cut, unknown, last - first - len(predicted))


def _check_memory(characters: int) -> None:
    """Refuse a text whose tokenization would abort the process."""
    needed, free = characters * _TOKENIZING_BYTES, available_bytes()
    if needed > free:
        raise ScenarioError(
            f"a text of {characters:,} characters takes about {needed / GIB:,.1f} GiB of memory to tokenize at once, and "
            f"{free / GIB:,.1f} GiB are free: divide it into documents (lines of a .jsonl), or give a part of it",
            kind="out_of_memory",
        )


def _covered(data: bytes, spans: NDArray[np.int64]) -> bytes:
    """Return the bytes in (n, 2) spans: one slice if they are contiguous, as they mostly are."""
    if len(spans) and (spans[1:, 0] == spans[:-1, 1]).all():
        return data[spans[0, 0] : spans[-1, 1]]
    return b"".join(data[begin:end] for begin, end in spans)


def _unknown(engine: Engine, text: str, tokens: Tokenized, predicted: range) -> int:
    """Count unknown tokens among the predicted ones, unless the text itself spells that token."""
    special = engine.info.special_tokens
    if special.unk_id is None:
        return 0
    unknown = [index for index in predicted if tokens.ids[index] == special.unk_id]
    name = special.names[special.unk_id]
    if tokens.spans is None:
        return max(len(unknown) - text.count(name), 0)
    data = text.encode()
    return sum(data[slice(*tokens.spans[index])].strip() != name.encode() for index in unknown)


def _with_start(engine: Engine, text: str) -> Tokenized:
    start = engine.info.special_tokens.start_id
    if start is None:
        raise UsageError("bos_rule=model is not possible: the tokenizer has no start token; use bos_rule=none")
    bare = engine.tokenize(text, special_tokens=False)
    if bare.ids[:1] == [start]:
        return bare
    spans = None if bare.spans is None else np.concatenate([[(0, 0)], np.reshape(bare.spans, (-1, 2))])
    return Tokenized([start, *bare.ids], spans, added=1)


_ENCODERS: dict[str, Callable[[Engine, str], Tokenized]] = {
    "tokenizer": lambda engine, text: engine.tokenize(text),
    "model": _with_start,
    "none": lambda engine, text: engine.tokenize(text, special_tokens=False),
}
