"""Divide a corpus into text to train on and text that is held out, so that no window reaches across."""

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
        train: texts to train on.
        validation: texts that are held out.
        how: `document` or `contiguous`.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    how: str


def split_texts(texts: Sequence[str], share: float, how: str = "auto") -> Split:
    """Hold out a part of the texts, before they are cut into tokens and windows.

    - `document`: whole documents are held out, those whose digests come first, until they make up the share. A document
      falls on the same side whatever else the corpus holds (as long as the share is not yet reached), and equal
      documents fall on the same side.
    - `contiguous`: the end of the corpus is held out, from a line's beginning on where the text has lines.
    - `auto`: `document` where there are two different documents, otherwise `contiguous`.

    Neither depends on a seed: models that were trained with different seeds are held to the same text.

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
    # One document at least stays to train on.
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
    # Text without lines before this place, as a whole document at its beginning, is cut where it falls.
    place = line or place
    before, after = [*texts[:number], text[:place]], [text[place:], *texts[number + 1 :]]
    return [each for each in before if each.strip()], [each for each in after if each.strip()]
