"""Split a corpus into training and held-out text, so that no window spans both."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from llmtrack.errors import UsageError
from llmtrack.spec.task import SPLITS


@dataclass(frozen=True)
class Split:
    """A corpus in two parts.

    Attributes:
        train: training texts.
        validation: held-out texts.
        how: `document` or `contiguous`.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    how: str


def split_texts(texts: Sequence[str], share: float, how: str = "auto") -> Split:
    """Hold out a part of the texts, before tokenization.

    - `document`: hold out whole documents, those with the smallest digests first, up to the share. The assignment of a
      document does not depend on the rest of the corpus (until the share is reached), and equal documents are on the
      same side.
    - `contiguous`: hold out the end of the corpus, starting at a line if the text has lines.
    - `auto`: `document` if there are two different documents, otherwise `contiguous`.

    Neither depends on a seed: models trained with different seeds share the held-out text.

    Args:
        texts: the documents.
        share: share of the characters to hold out, over 0 and under 1.
        how: as above.

    Raises:
        UsageError: `share` or `how` is not possible, or a side would be empty.
    """
    if not 0 < share < 1:
        raise UsageError(f"validation share {share:g} is not possible: use more than 0 and less than 1")
    if how not in SPLITS:
        raise UsageError(f"no split {how!r}: use {', '.join(SPLITS)}")
    if how == "auto":
        how = "document" if len(set(texts)) > 1 else "contiguous"
    train, validation = (_by_document if how == "document" else _contiguous)(texts, share)
    if not train or not validation:
        raise UsageError(
            f"the corpus cannot be split by {how}: one side would be empty; use a longer text, or split=contiguous"
        )
    return Split(tuple(train), tuple(validation), how)


def _by_document(texts: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    wanted = share * sum(map(len, texts))
    held, size = set(), 0
    different = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
    # Keep at least one document for training.
    for text in different[:-1]:
        if size >= wanted:
            break
        held.add(text)
        size += len(text) * texts.count(text)
    return [text for text in texts if text not in held], [text for text in texts if text in held]


def _contiguous(texts: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    place = round((1 - share) * sum(map(len, texts)))
    for number, text in enumerate(texts):
        if place < len(text) or number == len(texts) - 1:
            break
        place -= len(text)
    line = text.rfind("\n", 0, place) + 1
    # Without a line break before this position, cut in the middle of the line.
    place = line or place
    before, after = [*texts[:number], text[:place]], [text[place:], *texts[number + 1 :]]
    return [each for each in before if each.strip()], [each for each in after if each.strip()]
