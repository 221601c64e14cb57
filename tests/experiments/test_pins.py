"""Defaults stay unchanged: ids of scenarios, workloads and records, and MLproject's parameters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import declarations
from tests.experiments.pins import pins

PINNED = json.loads(Path(__file__).with_name("pins.json").read_text(encoding="utf-8"))
NOW = pins()


def test_pins_cover_every_entry_point():
    assert sorted(NOW["ids"]) == sorted(PINNED["ids"]), (
        "of a new experiment: python -m tests.experiments.pins > tests/experiments/pins.json (CONTRIBUTING.md)"
    )
    assert sum(map(len, PINNED["ids"].values())) >= 30


@pytest.mark.parametrize("name", PINNED["ids"])
def test_a_scenario_keeps_its_ids(name):
    """In this order: scenario, workload, record of the run."""
    assert NOW["ids"][name] == PINNED["ids"][name], (
        "a new setting at its default must not change them: leave it out there in `not_asked` and `workload_id` (spec/task.py)"
    )


@pytest.mark.parametrize("name", PINNED["parameters"])
def test_an_entry_point_keeps_its_parameters_and_their_defaults(name):
    """A new parameter is pinned when pins.json is next generated."""
    assert NOW["parameters"][name] | PINNED["parameters"][name] == NOW["parameters"][name]


@pytest.mark.parametrize(("field", "message"), [("position", "position=3"), ("name", "name='cache_padding'")])
def test_duplicate_positions_and_names_of_experiments_are_refused(monkeypatch, field, message):
    from experiments import cache_padding, perplexity

    changed = replace(perplexity.DECLARED, **{field: getattr(cache_padding.DECLARED, field)})
    monkeypatch.setattr(perplexity, "DECLARED", changed)
    with pytest.raises(ValueError, match=rf"both declare {message}: give each its own"):
        declarations()
