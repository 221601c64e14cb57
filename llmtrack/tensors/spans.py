"""Map tokens to the bytes of a text that they cover, by their spelling or a tokenizer's character offsets."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from llmtrack.models.bytelevel import byte_symbols

Span = tuple[int, int]

_BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in enumerate(byte_symbols())}


def byte_spans(
    text: str, pieces: Sequence[str], offsets: Callable[[], Sequence[Span]] | None
) -> NDArray[np.int64] | None:
    """Return the UTF-8 bytes of a text that each token covers, (tokens, 2), ordered and disjoint; None if unknown.

    Offsets are used only if the tokens do not spell the text: they count characters, and may omit white space or share
    a character. White space before a token belongs to it, and trailing white space to the last; accents that a
    normalizer composed or removed belong to their letter. Of a shared character, each token gets its own bytes if
    tokens consist of bytes, else the last gets them all. Bytes in no span have no token.

    Args:
        text: the original text, before normalization.
        pieces: spelling of each token in the vocabulary.
        offsets: returns the start and end character of each token; None if the tokenizer reports none.
    """
    sizes = _piece_bytes(pieces, text.encode())
    if sizes is not None:
        ends = np.cumsum(sizes)
        return np.stack([ends - sizes, ends], axis=1)
    return None if offsets is None else np.reshape(_from_offsets(text, pieces, offsets()), (-1, 2))


def _from_offsets(text: str, pieces: Sequence[str], offsets: Sequence[Span]) -> tuple[Span, ...]:
    spans = _widened(text, offsets)
    byte_at = list(accumulate((len(character.encode()) for character in text), initial=0))
    spans_in_bytes: list[Span] = []
    first = 0
    while first < len(spans):
        last = first
        while last + 1 < len(spans) and spans[last + 1][0] < spans[last][1]:
            last += 1
        group = spans[first : last + 1]
        begin, end = group[0][0], group[-1][1]
        ends = [byte_at[min(span[1], following[0])] for span, following in pairwise(group)]
        if ends:
            sizes = _piece_bytes(pieces[first : last + 1], text[begin:end].encode())
            ends = ends if sizes is None else [byte_at[begin] + count for count in accumulate(sizes[:-1])]
        spans_in_bytes += pairwise([byte_at[begin], *ends, byte_at[end]])
        first = last + 1
    return tuple(spans_in_bytes)


def _widened(text: str, offsets: Sequence[Span]) -> list[Span]:
    """Assign the characters between tokens to one of them."""
    spans: list[Span] = []
    done = 0
    for begin, end in offsets:
        # Characters inserted by a normalizer are reported before the next one.
        begin, end = begin if begin < end else max(begin, done), max(end, done)
        if begin > done:
            marks = _end_of_marks(text, done, begin)
            if spans and marks > done:
                spans[-1] = (spans[-1][0], marks)
            begin = marks + len(text[marks:begin].rstrip())
        spans.append((begin, end))
        done = end
    if spans:
        marks = _end_of_marks(text, done, len(text))
        end = len(text) if not text[marks:].strip() else marks
        spans[-1] = (spans[-1][0], end)
    # A token reported after a character may be within its normalized expansion.
    begins = list(accumulate((begin for begin, _ in reversed(spans)), min))[::-1]
    return [(begin, end) for begin, (_, end) in zip(begins, spans, strict=True)]


def _end_of_marks(text: str, begin: int, end: int) -> int:
    """Return the end of the combining marks at a position."""
    while begin < end and unicodedata.category(text[begin]).startswith("M"):
        begin += 1
    return begin


def _piece_bytes(pieces: Sequence[str], covered: bytes) -> list[int] | None:
    """Return the number of bytes of each piece in the covered text; None if they do not spell it."""
    for decode in (_byte_level, _byte_fallback):
        decoded = {piece: decode(piece) for piece in set(pieces)}
        parts = [decoded[piece] for piece in pieces]
        joined = b"".join(parts)
        # Some tokenizers prepend a space.
        extra = len(joined) - len(covered)
        if parts and extra in (0, 1) and joined == b" " * extra + covered:
            return [len(parts[0]) - extra, *map(len, parts[1:])]
    return None


def _byte_level(piece: str) -> bytes:
    if all(symbol in _BYTE_OF_SYMBOL for symbol in piece):
        return bytes(_BYTE_OF_SYMBOL[symbol] for symbol in piece)
    return piece.encode()  # added tokens are spelled literally


def _byte_fallback(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("\u2581", " ").encode()
