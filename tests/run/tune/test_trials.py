"""Records of a journal that do not belong to this search are measured anew."""

from __future__ import annotations

import json
from functools import partial

import pytest

from llmtrack.decide.predictor import Prior
from llmtrack.run.study.journal import Journal
from llmtrack.run.tune.trials import _decode_outcome, _decode_priors
from llmtrack.spec.serialization import to_json

KNOWN = {"a": Prior("torch", "torch/float32/none"), "b": Prior("onnx", "onnx/float32/none")}
OTHERS = to_json({"a": KNOWN["a"], "c": KNOWN["b"]}, dict[str, Prior])
INVALID = [5, None, [], "x", {}, {"a": 5, "b": None}, OTHERS]


@pytest.mark.parametrize("gave", INVALID)
def test_invalid_priors_are_looked_up_again(tmp_path, gave):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"key": ["ways"], "gave": gave}) + "\n")
    known = to_json(KNOWN, dict[str, Prior])
    for taken_over in (0, 1):  # the second time from the journal
        journal = Journal(path, resume=True)
        assert journal.act(["ways"], lambda: known, partial(_decode_priors, KNOWN)) == KNOWN
        assert journal.taken_over == taken_over
        journal._lock.release(force=True)


@pytest.mark.parametrize("gave", [*INVALID, {"outcome": {}, "seconds": 1}, {"outcome": 5, "seconds": 10**400}])
def test_an_invalid_outcome_is_measured_again(tmp_path, gave):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"key": ["measure"], "gave": gave}) + "\n")
    journal = Journal(path, resume=True)

    def decode(result):
        return result if result == "measured" else _decode_outcome(result)

    assert journal.act(["measure"], lambda: "measured", decode) == "measured"
    journal._lock.release(force=True)
