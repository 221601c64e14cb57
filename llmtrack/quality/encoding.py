"""Turn text into the tokens that are scored: what stands before it, what is cut, which text is predicted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmtrack.engine import Engine, Tokenized
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.host.units import GIB
from llmtrack.measure.memory import available_bytes

# Of memory, for each character of a text: what a tokenizer of Rust holds at most while it divides it, as measured.
_TOKENIZING_BYTES = 150


@dataclass(frozen=True)
class Encoded:
    """A text ready to be scored.

    Attributes:
        ids: its tokens; the first are given, the others are predicted.
        given: number of the given ones: all that stands before the text, or its first token.
        text: UTF-8 bytes of the original text that the predicted tokens cover, which may begin or end within a
            character; None where the tokenizer does not tell.
        cut: tokens at its end that are left out.
        unknown: predicted tokens that stand for text which the vocabulary does not have.
        lost: bytes of the text, as far as it was kept, that no token stands for.
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
        """UTF-8 bytes of the predicted text; None where the tokenizer does not tell."""
        return None if self.text is None else len(self.text)

    @property
    def words(self) -> int | None:
        """White-space separated words of the predicted text, the parts at its ends included."""
        return None if self.text is None else len(self.text.decode("utf-8", "replace").split())


def tokens_digest(rows: Iterable[Encoded]) -> str:
    """Return 16 hex digits that tell the tokens of rows."""
    return digest_of(np.asarray(each.ids, dtype="<i8").tobytes() for each in rows)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return 16 hex digits that tell the parts, their order and where each ends."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


def unknown_warning(unknown: int, of: int, what: str, so: str) -> tuple[str, ...]:
    """Say that tokens stand for text which the vocabulary does not have; nothing if none does.

    Args:
        unknown: how many.
        of: of how many.
        what: what these are, in words.
        so: what follows from it.
    """
    if not unknown:
        return ()
    return (f"{unknown} of {of} {what} stand for text that the vocabulary does not have: {so}",)


def lost_warning(lost: int, so: str) -> tuple[str, ...]:
    """Say that bytes of a text became no token; nothing if none did.

    Args:
        lost: how many.
        so: what follows from it.
    """
    return (f"the tokenizer has no token for {lost} bytes of the text: {so}",) if lost else ()


def encode_text(engine: Engine, text: str, bos_rule: str, keep: int | None = None) -> Encoded:
    """Encode a text by a `bos_rule`.

    - `tokenizer`: with what the tokenizer puts before every text by itself: some put a beginning-of-sequence token
      (BOS) there, others nothing.
    - `model`: exactly one BOS, or the end-of-sequence token where the tokenizer has no BOS, so that every token
      of the text is predicted. It is what lm-evaluation-harness puts before a rolling log-likelihood.
    - `none`: nothing; the first token of the text is given.

    A text that begins with such a token itself gets no second one. What a tokenizer puts after a text is left out.

    Args:
        engine: a loaded engine.
        text: the text.
        bos_rule: one of the above.
        keep: tokens that are kept at most, the one put before the text included; None: all.

    Raises:
        UsageError: `bos_rule` is not one of these, or `model` and the tokenizer has neither token.
        ScenarioError: the text is too long for this machine's memory.
    """
    _check_memory(len(text))
    if bos_rule not in _ENCODERS:
        raise UsageError(f"no bos_rule {bos_rule!r}: use one of {', '.join(_ENCODERS)}")
    tokens = _ENCODERS[bos_rule](engine, text)
    ids = tokens.ids[:keep]
    given, cut = max(tokens.added, 1), len(tokens.ids) - len(ids)
    unknown = _unknown(engine, text, tokens, range(given, len(ids)))
    if tokens.spans is None:
        # Of what is known to be all of the text nothing else must be known.
        return Encoded(ids, given, text.encode() if tokens.added and not cut else None, cut, unknown)
    data, spans = text.encode(), np.reshape(tokens.spans[: len(ids)], (-1, 2))
    predicted = _covered(data, spans[given:])
    first = int(spans[0, 1]) if len(spans) and not tokens.added else 0
    last = int(spans[-1, 1]) if cut else len(data)
    return Encoded(ids, given, predicted, cut, unknown, last - first - len(predicted))


def _check_memory(characters: int) -> None:
    """Refuse a text that a tokenizer would abort the process over."""
    needed, free = characters * _TOKENIZING_BYTES, available_bytes()
    if needed > free:
        raise ScenarioError(
            f"a text of {characters:,} characters takes about {needed / GIB:,.1f} GiB of memory to tokenize at once, and "
            f"{free / GIB:,.1f} GiB are free: divide it into documents (lines of a .jsonl), or give a part of it",
            kind="out_of_memory",
        )


def _covered(data: bytes, spans: NDArray[np.int64]) -> bytes:
    """Return the bytes in some spans, (spans, 2): as one piece where nothing is between them, as it mostly is."""
    if len(spans) and (spans[1:, 0] == spans[:-1, 1]).all():
        return data[spans[0, 0] : spans[-1, 1]]
    return b"".join(data[begin:end] for begin, end in spans)


def _unknown(engine: Engine, text: str, tokens: Tokenized, predicted: range) -> int:
    """Count the unknown among the predicted tokens; where the text itself spells that token, it is known."""
    special = engine.info.special_tokens
    if special.unk_id is None:
        return 0
    found = [number for number in predicted if tokens.ids[number] == special.unk_id]
    name = special.names[special.unk_id]
    if tokens.spans is None:
        return max(len(found) - text.count(name), 0)
    data = text.encode()
    return sum(data[slice(*tokens.spans[number])].strip() != name.encode() for number in found)


def _with_start(engine: Engine, text: str) -> Tokenized:
    start = engine.info.special_tokens.start_id
    if start is None:
        raise UsageError("bos_rule=model is not possible, the tokenizer has no token to begin with: use bos_rule=none")
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
