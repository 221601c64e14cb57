"""Arguments of a wrong type are refused in one line, and a single text counts as one text, not as its characters."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import llmtrack
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.spec.parameter import Option, Parameter, optional_text, require_integer, require_text, require_texts

NOT_TEXTS = [3, 2.5, float("nan"), True, b"x", ["x"], ("a", "b"), {"a": 1}, object(), pd.NA]


def type_name(value):
    return type(value).__name__


@pytest.mark.parametrize("value", [None, *NOT_TEXTS], ids=type_name)
def test_an_argument_that_is_not_a_text_is_refused_with_its_type(value):
    expected = "^model is None: give a text$" if value is None else f"is an? {type_name(value)}: give a text$"
    with pytest.raises(UsageError, match=expected):
        require_text("model", value)
    with pytest.raises(UsageError):
        require_texts("prompt", [value])


def test_texts_and_paths_are_accepted():
    assert require_text("model", Path("/a/b")) == "/a/b"
    assert (optional_text("study", None), optional_text("study", "a")) == (None, "a")
    assert require_texts("prompt", "abc") == ("abc",)
    assert require_texts("prompt", (letter for letter in "abc")) == ("a", "b", "c")


@pytest.mark.parametrize("value", [None, *NOT_TEXTS], ids=type_name)
@pytest.mark.parametrize(
    "call",
    [
        lambda value: llmtrack.run(value),
        lambda value: llmtrack.run("baseline", model=value),
        lambda value: llmtrack.load_engine(value),
        lambda value: llmtrack.load_engine("synthetic:tiny", device=value),
        lambda value: llmtrack.load_engine("synthetic:tiny", backend=value),
        lambda value: llmtrack.load_corpus(value),
        lambda value: llmtrack.report(value),
        lambda value: llmtrack.measurements(value),
    ],
    ids=["run", "model", "engine", "device", "backend", "corpus", "report", "measurements"],
)
def test_the_public_functions_refuse_other_types_in_one_line(call, value):
    with pytest.raises(UsageError) as caught:
        call(value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "x", True, None, [3], torch.tensor([3, 4])], ids=str)
def test_an_invalid_number_of_tokens_is_refused(value):
    with pytest.raises(UsageError, match="max_new_tokens"):
        require_integer("max_new_tokens", value)
    engine = ScriptedEngine(FakeClock(), Script(1.0, 1.0))
    for call in (llmtrack.generate_texts, llmtrack.time_generate):
        with pytest.raises(LlmtrackError, match="max_new_tokens"):
            call(engine, ["abc"], value)


def test_numbers_of_other_libraries_are_accepted():
    assert require_integer("max_new_tokens", torch.tensor(3)) == 3
    assert require_integer("max_new_tokens", "3") == 3


def test_no_prompt_is_refused_and_a_text_is_one_prompt():
    engine = ScriptedEngine(FakeClock(), Script(1.0, 1.0))
    with pytest.raises(UsageError, match="no prompt: give"):
        llmtrack.time_generate(engine, [])
    assert len(llmtrack.generate_texts(engine, "abc", 2)) == 1


def test_a_custom_reader_accepts_other_types():
    dtype = Parameter("dtype", str, False, False, "", Option("", read=lambda text: text.removeprefix("torch.")))
    assert dtype.accept(torch.float32) == "float32"


@pytest.mark.parametrize("alpha", [0, 1, 7, -0.1, float("nan"), "x", None])
def test_an_invalid_probability_is_refused(alpha):
    from llmtrack.decide.compare import compare_pairs

    with pytest.raises(UsageError, match="alpha"):
        compare_pairs([], [], alpha=alpha)
