"""Turn text into the tokens that are scored: what stands before it, what is cut, which text is predicted."""

from __future__ import annotations

from dataclasses import dataclass

from llmtrack.engines.base import Engine
from llmtrack.errors import UsageError


@dataclass(frozen=True)
class Encoded:
    """A text ready to be scored.

    Attributes:
        ids: its tokens; the first is given, the others are predicted.
        text: the text of the predicted tokens.
        cut: tokens at its end that are left out.
    """

    ids: list[int]
    text: str
    cut: int

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the predicted text."""
        return len(self.text.encode())

    @property
    def words(self) -> int:
        """White-space separated words of the predicted text."""
        return len(self.text.split())


def encode_text(engine: Engine, text: str, bos_rule: str, keep: int | None = None) -> Encoded:
    """Encode a text by a `bos_rule`.

    - `tokenizer`: as the tokenizer does by itself: some put a beginning-of-sequence token (BOS) before a
      text, others nothing.
    - `model`: exactly one BOS, or the end-of-sequence token where the tokenizer has no BOS, so that every token
      of the text is predicted. It is what lm-evaluation-harness puts before a rolling log-likelihood.
    - `none`: nothing; the first token of the text is given.

    Args:
        engine: a loaded engine.
        text: the text.
        bos_rule: one of the above.
        keep: tokens that are kept at most, the one put before the text included; None: all.

    Raises:
        UsageError: `bos_rule` is not one of these, or `model` and the tokenizer has neither token.
    """
    if bos_rule not in _ENCODERS:
        raise UsageError(f"no bos_rule {bos_rule!r}: use one of {', '.join(_ENCODERS)}")
    ids = _ENCODERS[bos_rule](engine, text)
    kept = ids[:keep]
    # The text itself where all of it is predicted; decoding can lose a leading space.
    whole = bos_rule == "model" and len(kept) == len(ids)
    return Encoded(kept, text if whole else engine.decode(kept[1:]), len(ids) - len(kept))


def _after_prefix(engine: Engine, text: str) -> list[int]:
    prefix = engine.info.special_tokens.start_id
    if prefix is None:
        raise UsageError(
            "bos_rule=model is not possible, the tokenizer has no token to begin with: use bos_rule=none"
        )
    return [prefix, *engine.encode(text, special_tokens=False)]


_ENCODERS = {
    "tokenizer": lambda engine, text: engine.encode(text),
    "model": _after_prefix,
    "none": lambda engine, text: engine.encode(text, special_tokens=False),
}
