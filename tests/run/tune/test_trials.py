"""What a journal holds that is none of this search's is looked up or measured anew."""

from __future__ import annotations

import json
from functools import partial

import pytest

from llmtrack.decide.predictor import Prior
from llmtrack.run.study.journal import Journal
from llmtrack.run.tune.trials import _priors, _read
from llmtrack.spec.serialization import to_json

KNOWN = {"a": Prior("torch", "torch/float32/none"), "b": Prior("onnx", "onnx/float32/none")}
OTHERS = to_json({"a": KNOWN["a"], "c": KNOWN["b"]}, dict[str, Prior])
NONE_OF_A_SEARCH = [5, None, [], "x", {}, {"a": 5, "b": None}, OTHERS]


@pytest.mark.parametrize("gave", NONE_OF_A_SEARCH)
def test_knowledge_of_other_candidates_or_none_is_looked_up_again(tmp_path, gave):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"key": ["ways"], "gave": gave}) + "\n")
    known = to_json(KNOWN, dict[str, Prior])
    for taken_over in (0, 1):  # the second time it is in the journal
        journal = Journal(path, resume=True)
        assert journal.act(["ways"], lambda: known, partial(_priors, KNOWN)) == KNOWN
        assert journal.taken_over == taken_over
        journal._lock.release(force=True)


@pytest.mark.parametrize("gave", [*NONE_OF_A_SEARCH, {"outcome": {}, "seconds": 1}, {"outcome": 5, "seconds": 10**400}])
def test_an_outcome_that_is_none_is_measured_again(tmp_path, gave):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"key": ["measure"], "gave": gave}) + "\n")
    journal = Journal(path, resume=True)

    def read(found):
        return found if found == "measured" else _read(found)

    assert journal.act(["measure"], lambda: "measured", read) == "measured"
    journal._lock.release(force=True)
