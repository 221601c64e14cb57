"""Conformance tests of an engine; one that takes a single row at a time may reject batches."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from llmtrack.engine import Engine, EngineInfo, GenerateRequest
from llmtrack.engines.registry import incomplete
from llmtrack.errors import ScenarioError
from llmtrack.measure.finite import NON_FINITE, check_finite
from llmtrack.tensors.padding import pad_rows
from llmtrack.tensors.tokens import until_eos
from llmtrack.testing.models import ending_model, spoiled_model

Rows = tuple[tuple[int, ...], ...]
"""Token ids of each row."""

SIDES = ("left", "right")

MAX_SCORED = 1024
"""Maximum length of a scored row."""


class EngineConformance:
    """Base class of an engine's tests: implement `load` and run pytest.

    Attributes:
        model: model for most tests; small, since its answers need not make sense.
        prompts: texts of unequal lengths to generate from and to score.
        texts: texts that survive encoding and decoding unchanged.
        new_tokens: tokens to generate.
        tolerance: relative tolerance of a log-likelihood sum against the plain loop's.
        predicts: whether tokens follow from the exposed logits; False for an engine that plays a script.
    """

    model = "synthetic:tiny"
    prompts: tuple[str, ...] = ("The harbour", "Boats come in with the tide", "x")
    texts: tuple[str, ...] = ("The harbour wakes before the town.", "a  b", "1 + 1 = 2", "x")
    new_tokens = 8
    tolerance = 1e-4
    predicts = True

    def load(self, model: str) -> Engine:
        """Load the engine of a model, given as a spec or folder."""
        raise NotImplementedError("implement load(model) in your class of conformance tests")

    def load_ending(self, eos_id: int, folder: Path) -> Engine:
        """Load the same model with an ordinary token as its end-of-sequence token."""
        return self.load(str(ending_model(self.model, folder, eos_id)))

    def load_spoiled(self, folder: Path) -> Engine:
        """Load a model with NaN logits, or reject it with kind `non_finite`."""
        return self.load(str(spoiled_model(self.model, folder)))

    def banned(self, engine: Engine) -> frozenset[int]:
        """Return the end-of-sequence tokens, which must not be chosen when the end is ignored."""
        eos = engine.info.special_tokens.eos_id
        return frozenset() if eos is None else frozenset({eos})

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        """The engine under test, loaded once."""
        engine = cls().load(cls.model)
        yield engine
        engine.close()

    @pytest.fixture
    def rows(self, engine: Engine) -> Rows:
        """The prompts as token ids."""
        return tuple(tuple(engine.encode(text)) for text in self.prompts)

    # Interface.

    def test_interface_is_complete(self, engine: Engine) -> None:
        """All methods, and facts of the right type."""
        assert incomplete(engine) == ""

    def test_info_is_plausible(self, engine: Engine) -> None:
        """Plausible names, sizes, special tokens, facts and tags."""
        info = engine.info
        assert isinstance(info, EngineInfo)
        assert info.model_id
        assert info.dtype_label
        assert re.fullmatch(r"cpu|cuda:\d+|mps(:0)?|xpu:\d+", info.device), info.device
        assert info.model_size_bytes > 0
        assert info.step_weight_bytes > 0
        assert info.kv_bytes_per_token >= 0
        assert info.state_bytes >= 0
        assert info.vocab_size > 0
        assert info.context_length is None or info.context_length > 0
        assert info.load_time_s is None or info.load_time_s >= 0
        assert info.file_size_bytes is None or info.file_size_bytes > 0
        assert not info.folder or Path(info.folder).is_dir()
        special = info.special_tokens
        assert all(isinstance(name, str) for name in special.names.values())
        assert all(isinstance(token, int) for token in (*special.names, *special.prefix))
        assert {special.bos_id, special.eos_id, special.unk_id} - {None} <= set(special.names)
        assert all(isinstance(value, (str, int, float, bool)) for value in info.facts.values()), info.facts
        assert all(isinstance(value, str) for value in info.tags.values()), info.tags
        assert all(isinstance(warning, str) and warning for warning in info.warnings)

    # Text.

    def test_text_survives_encoding_and_decoding(self, engine: Engine) -> None:
        """Round trip with and without special tokens."""
        for text in self.texts:
            assert engine.decode(engine.encode(text, special_tokens=False)) == text
            assert engine.decode(engine.encode(text)) == text, "special tokens are left out of a text"

    def test_tokens_are_in_the_vocabulary(self, engine: Engine) -> None:
        """For any text, including an empty one."""
        for text in (*self.texts, "", " ", "naïve café, 中文 🚢\n\t"):
            ids = engine.encode(text)
            assert all(isinstance(token, int) and 0 <= token < engine.info.vocab_size for token in ids), text
        assert list(engine.encode("", special_tokens=False)) == []

    @pytest.mark.parametrize("special_tokens", [True, False])
    def test_tokens_cover_the_bytes_of_the_text(self, engine: Engine, special_tokens: bool) -> None:
        """Ordered, disjoint and complete; added tokens cover nothing."""
        for text in (*self.texts, "naïve café, 中文 🚢\n\t"):
            tokenized = engine.tokenize(text, special_tokens)
            assert list(tokenized.ids) == list(engine.encode(text, special_tokens))
            assert tokenized.added == len(tokenized.ids) - len(engine.tokenize(text, False).ids)
            assert tokenized.added <= len(engine.info.special_tokens.prefix)
            if tokenized.spans is None:
                continue
            assert len(tokenized.spans) == len(tokenized.ids)
            assert all(begin == end for begin, end in tokenized.spans[: tokenized.added])
            assert all(begin <= end for begin, end in tokenized.spans)
            assert all(before[1] <= after[0] for before, after in pairwise(tokenized.spans))
            size = sum(end - begin for begin, end in tokenized.spans)
            assert size == len(text.encode()), f"{size} of {len(text.encode())} bytes of {text!r} are covered"

    # Generating.

    def test_each_requested_token_takes_one_step(self, engine: Engine, rows: Rows) -> None:
        """`on_step` is called once per step for all rows."""
        for new_tokens in (1, 2, self.new_tokens):
            ids, steps = generate(engine, rows[:1], new_tokens)
            assert [len(row) for row in ids] == [new_tokens]
            assert steps == new_tokens
            assert all(0 <= token < engine.info.vocab_size for token in ids[0])

    def test_generation_equals_a_plain_loop(self, engine: Engine, rows: Rows) -> None:
        """Greedy, with and without cache, compared with a loop without cache or pads."""
        if not self.predicts:
            pytest.skip("this engine plays a script: its tokens do not follow from its logits")
        with skip_without_logits():
            expected = greedy(engine, rows[0], self.new_tokens, self.banned(engine))
        for use_cache in (True, False):
            ids, _ = generate(engine, rows[:1], self.new_tokens, use_cache=use_cache)
            assert ids[0] == expected, f"use_cache={use_cache}"

    def test_calls_are_independent(self, engine: Engine, rows: Rows) -> None:
        """A call gives the same result after another one."""
        first = generate(engine, rows[:1], self.new_tokens)
        generate(engine, rows[1:2], self.new_tokens)
        assert generate(engine, rows[:1], self.new_tokens) == first

    @pytest.mark.parametrize("pad_to_multiple", [1, 8])
    @pytest.mark.parametrize("use_cache", [True, False])
    def test_a_row_generates_the_same_alone_and_in_a_batch(
        self, engine: Engine, rows: Rows, use_cache: bool, pad_to_multiple: int
    ) -> None:
        """Left padding does not change the output; an engine that cannot batch must reject with kind `unsupported`."""
        alone = [generate(engine, (row,), self.new_tokens, use_cache=use_cache)[0][0] for row in rows]
        batch = generate_unless_refused(
            engine, rows, self.new_tokens, use_cache=use_cache, pad_to_multiple=pad_to_multiple
        )
        assert batch is None or batch == (tuple(alone), self.new_tokens)

    def test_right_padding_does_not_change_the_longest_row(self, engine: Engine, rows: Rows) -> None:
        """Other rows continue from their pads, which is only useful for timing; rejecting with `unsupported` is fine."""
        longest = max(range(len(rows)), key=lambda row: len(rows[row]))
        batch = generate_unless_refused(engine, rows, self.new_tokens, padding_side="right")
        if batch is None:
            return
        ids, steps = batch
        assert [len(row) for row in ids] == [self.new_tokens] * len(rows)
        assert steps == self.new_tokens
        assert ids[longest] == generate(engine, (rows[longest],), self.new_tokens)[0][0]

    def test_padding_side_does_not_matter_without_pads(self, engine: Engine, rows: Rows) -> None:
        """Without pads, the padding side does not matter."""
        equal = tuple(row[: min(map(len, rows[:2]))] for row in rows[:2])
        left, right = (generate_unless_refused(engine, equal, self.new_tokens, padding_side=side) for side in SIDES)
        assert left == right

    def test_rows_stop_at_the_end_token_unless_it_is_ignored(self, engine: Engine, rows: Rows, tmp_path: Path) -> None:
        """The end token is kept and counted, nothing follows it, and the batch stops with its longest row."""
        free = [generate(engine, (row,), self.new_tokens)[0][0] for row in rows]
        eos = free[0][2]
        ending = self.load_ending(eos, tmp_path / "ending")
        expected = [until_eos(row, {eos}) for row in free]
        assert len(expected[0]) < self.new_tokens
        for row, new_ids in zip(rows, expected, strict=True):
            ids, steps = generate(ending, (row,), self.new_tokens, ignore_eos=False)
            assert (ids, steps) == ((new_ids,), len(new_ids))
        twice = generate_unless_refused(ending, rows[:1] * 2, self.new_tokens, ignore_eos=False)
        assert twice is None or twice == ((expected[0],) * 2, len(expected[0]))
        batch = generate_unless_refused(ending, rows, self.new_tokens, ignore_eos=False)
        assert batch is None or batch == (tuple(expected), max(map(len, expected)))
        ids, steps = generate(ending, rows[:1], self.new_tokens, ignore_eos=True)
        ending.close()
        assert steps == len(ids[0]) == self.new_tokens
        assert eos not in ids[0]
        assert ids[0][: len(expected[0]) - 1] == expected[0][:-1]

    # Scoring.

    @pytest.mark.parametrize("side", SIDES)
    def test_scores_equal_a_plain_loop(self, engine: Engine, rows: Rows, side: str) -> None:
        """Per row, in nats and float64, over every token but the first, regardless of padding."""
        with skip_without_logits():
            expected = [negative_log_likelihood(engine, row, [True] * len(row)) for row in rows]
        sums, counts = engine.score(*pad_rows(rows, 0, side))
        assert (sums.dtype, counts.dtype) == (torch.float64, torch.int64)
        assert sums.tolist() == pytest.approx(expected, rel=self.tolerance, abs=1e-9)
        assert counts.tolist() == [len(row) - 1 for row in rows]

    @pytest.mark.parametrize("side", SIDES)
    def test_only_requested_tokens_are_scored(self, engine: Engine, rows: Rows, side: str) -> None:
        """Tokens that do not count still serve as context."""
        flags = [[position % 3 == 1 for position in range(len(row))] for row in rows]
        with skip_without_logits():
            expected = [negative_log_likelihood(engine, *pair) for pair in zip(rows, flags, strict=True)]
        scored = pad_rows([list(map(int, row)) for row in flags], 0, side)[0].bool()
        sums, counts = engine.score(*pad_rows(rows, 0, side), scored)
        assert sums.tolist() == pytest.approx(expected, rel=self.tolerance, abs=1e-9)
        assert counts.tolist() == [sum(row[1:]) for row in flags]

    def test_a_row_scores_the_same_alone_and_in_a_batch(self, engine: Engine, rows: Rows) -> None:
        """A row has the same sum alone and in a batch."""
        with skip_without_logits():
            batched, _ = engine.score(*pad_rows(rows, 0, "right"))
        alone = [float(engine.score(*pad_rows([row], 0, "right"))[0]) for row in rows]
        assert batched.tolist() == pytest.approx(alone, rel=self.tolerance, abs=1e-9)

    def test_logits_have_the_documented_shape(self, engine: Engine, rows: Rows) -> None:
        """Shape (tokens, vocabulary), float32, on the host."""
        with skip_without_logits():
            logits = engine.next_token_logits(rows[0])
        assert logits.shape == (len(rows[0]), engine.info.vocab_size)
        assert (logits.dtype, logits.device.type) == (torch.float32, "cpu")

    def test_a_row_that_fills_the_context_is_scored(self, engine: Engine) -> None:
        """Scoring needs no room for generated tokens."""
        length = min(engine.info.context_length or 0, MAX_SCORED)
        logits = engine.next_token_logits([1] * length) if length else torch.zeros(0)
        assert len(logits) == length
        assert torch.isfinite(logits).all()

    def test_nan_logits_are_reported(self, rows: Rows, tmp_path: Path) -> None:
        """NaN logits are rejected or exposed, never hidden."""
        with pytest.raises(ScenarioError) as caught:
            self._run_spoiled(rows[:1], tmp_path / "spoiled")
        assert caught.value.kind == NON_FINITE

    def _run_spoiled(self, rows: Rows, folder: Path) -> None:
        engine = self.load_spoiled(folder)
        try:
            request = GenerateRequest(rows, self.new_tokens)
            ids = engine.generate(request, lambda: None).new_ids
            with skip_without_logits():
                sums, _ = engine.score(*pad_rows(rows, 0, "right"))
            assert not math.isfinite(float(sums))
            assert check_finite(engine, (request,), ids) == ()
        finally:
            engine.close()

    # Resources.

    def test_peak_memory_can_be_read(self, engine: Engine, rows: Rows) -> None:
        """The peak since the last reset in bytes, or None if unknown; synchronizing works."""
        engine.synchronize()
        engine.reset_peak_memory()
        generate(engine, rows[:1], 2)
        engine.synchronize()
        peak = engine.peak_memory_bytes()
        assert peak is None or (isinstance(peak, int) and peak > 0)

    def test_it_can_be_closed_and_loaded_again(self, engine: Engine, rows: Rows) -> None:
        """Same results after reloading; other loaded engines are unaffected."""
        before, _ = generate(engine, rows[:1], self.new_tokens)
        for _ in range(2):
            other = self.load(self.model)
            assert generate(other, rows[:1], self.new_tokens)[0] == before
            other.close()
        assert generate(engine, rows[:1], self.new_tokens)[0] == before


def generate(
    engine: Engine, rows: Sequence[Sequence[int]], new_tokens: int, **settings: bool | int | str
) -> tuple[Rows, int]:
    """Return the new tokens of each row, and the number of reported steps."""
    steps: list[None] = []
    request = GenerateRequest(tuple(map(tuple, rows)), new_tokens, **settings)  # type: ignore[arg-type]
    new_ids = engine.generate(request, lambda: steps.append(None)).new_ids
    return tuple(tuple(row) for row in new_ids), len(steps)


def generate_unless_refused(
    engine: Engine, rows: Sequence[Sequence[int]], new_tokens: int, **settings: bool | int | str
) -> tuple[Rows, int] | None:
    """Like `generate`; None if the engine rejects the batch."""
    try:
        return generate(engine, rows, new_tokens, **settings)
    except ScenarioError as error:
        if error.kind != "unsupported":
            raise
        return None


@contextmanager
def skip_without_logits() -> Iterator[None]:
    """Skip the test if the engine raises NotImplementedError."""
    try:
        yield
    except NotImplementedError as error:
        pytest.skip(f"this engine does not show its logits: {error}")


def greedy(engine: Engine, prompt: Sequence[int], new_tokens: int, banned: Collection[int]) -> tuple[int, ...]:
    """Generate greedily, never choosing banned tokens."""
    ids = list(prompt)
    for _ in range(new_tokens):
        logits = engine.next_token_logits(ids)[-1].clone()
        logits[sorted(banned)] = float("-inf")
        ids.append(int(logits.argmax()))
    return tuple(ids[len(prompt) :])


def negative_log_likelihood(engine: Engine, row: Sequence[int], counted: Sequence[bool]) -> float:
    """Return the summed negative log-likelihood of the counted tokens of a row, in nats and float64."""
    logits = engine.next_token_logits(row).double()
    return sum(
        float(logits[position - 1].logsumexp(0) - logits[position - 1, row[position]])
        for position in range(1, len(row))
        if counted[position]
    )
