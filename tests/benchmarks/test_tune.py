"""The full grid, with which a search is compared, measures everything, scores each model once, and finds the same answer."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.tune import REPEATS, full_grid
from llmtrack.decide.tuning import Tuning
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.progress import SearchProgress
from llmtrack.run.tune.trials import Trials, TuneGoal
from tests.run.conftest import _known_ceilings  # noqa: F401 - fixture
from tests.run.tune.test_tune import SHORT, WAYS, Machine, space


def hands(machine, folder):
    goal = TuneGoal("decode_tokens_per_sec", 1e6, SHORT)
    progress = SearchProgress(Console(file=io.StringIO()), 1e6, machine.clock(), machine.clock)
    journal = Journal(folder / "journal.jsonl", False)
    clock = machine.clock
    return Trials(space(machine.ways).candidates, goal, machine.pool(), progress, journal, folder, clock, clock())


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_known_ceilings")
def test_the_search_finds_the_best_of_the_grid_in_less_time(tmp_path):
    of_race, of_grid = Machine(WAYS), Machine(WAYS)
    raced = hands(of_race, tmp_path)
    tuning = Tuning(raced.search_goal(), raced)
    tuning.run()
    speeds, losses = full_grid(hands(of_grid, tmp_path))
    assert set(speeds) == set(losses) == set(WAYS)
    assert losses["none"] == 1.0
    assert losses["lossy"] > 1.01 > losses["small"]
    within = [name for name in speeds if losses[name] <= 1.01]
    assert max(within, key=speeds.__getitem__) == tuning.winner == "small"
    assert of_grid.calls >= REPEATS * len(WAYS)
