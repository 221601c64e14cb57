"""The training loop on a small real model: gradients, order of events, stops."""

from __future__ import annotations

import math
from itertools import count, cycle
from types import SimpleNamespace

import pytest
import torch

from llmtrack.errors import ScenarioError
from llmtrack.train.data import WindowDataset, collate, plan_training_windows
from llmtrack.train.loop import (
    Hooks,
    LoopSettings,
    State,
    autocast_for,
    fit,
    learning_rate,
    make_optimizer,
    sum_cross_entropy,
    train_step,
)

VOCAB = 13


class Small(torch.nn.Module):
    """Predicts from a token and its predecessor, with the interface of transformers' models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCAB, 16)
        self.head = torch.nn.Linear(32, VOCAB)
        self.poison = 0.0

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        now = self.embedding(input_ids)
        before = torch.nn.functional.pad(now, (0, 0, 1, 0))[:, :-1]
        both = torch.cat([now, before], dim=-1)
        return SimpleNamespace(logits=self.head(both) + self.poison)


IDS = [(7 * n + n // 3) % VOCAB for n in range(60)]
DATASET = WindowDataset(IDS, plan_training_windows(len(IDS), 8))


def weights(model):
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (5, 2, 1), (1,) * 8])
def test_accumulated_batches_equal_one_large_batch(sizes):
    """The last window is shorter, so a mean of means would differ."""
    rows = [DATASET[index] for index in range(8)]
    assert len({len(read) for read, _ in rows}) == 2
    results = {}
    for parts in ((8,), sizes):
        model = Small()
        optimizer = make_optimizer(model, weight_decay=0.1)
        position = count()
        batches = [collate([rows[next(position)] for _ in range(size)]) for size in parts]
        results[parts] = (*train_step(model, optimizer, batches, rate=0.01, clip_norm=1.0), weights(model))
    loss, norm, trained = results[(8,)]
    assert results[sizes][0] == pytest.approx(loss, abs=1e-6)
    assert results[sizes][1] == pytest.approx(norm, abs=1e-5)
    assert torch.allclose(results[sizes][2], trained, atol=1e-5, rtol=0)


def test_the_loss_of_a_step_is_from_before_the_update():
    model = Small()
    batch = collate([DATASET[0]])
    logits = model(batch.inputs, False).logits[0]
    expected = -logits.log_softmax(-1)[range(8), batch.targets[0]].mean()
    loss, _ = train_step(model, make_optimizer(model, 0.0), [batch], 0.1, 0.0)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)


def test_clipping_bounds_the_gradient_and_reports_its_norm_before():
    model, batch = Small(), collate([DATASET[0]])
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    before = weights(model)
    _, norm = train_step(model, sgd, [batch], rate=1.0, clip_norm=0.01)
    assert norm > 0.1
    assert float((weights(model) - before).norm()) == pytest.approx(0.01, rel=1e-3)


def test_only_matrices_decay():
    model = Small()
    decays = {
        id(p): group["weight_decay"] for group in make_optimizer(model, 0.3).param_groups for p in group["params"]
    }
    assert [decays[id(p)] for p in (model.embedding.weight, model.head.weight, model.head.bias)] == [
        0.3,
        0.3,
        0.0,
    ]


def settings(**changes):
    return LoopSettings(**{"steps": 6, "learning_rate": 0.01, "eval_every": 2, **changes})


def run(losses, model=None, state=None, should_stop=lambda: False, **changes):
    """Run the loop with a clock that advances one second per reading, and the given validation losses."""
    model, state = model or Small(), state or State()
    log: list = []
    validation = iter(losses)
    ticks = count()
    hooks = Hooks(
        evaluate=lambda: log.append(("evaluate", state.step, model.training)) or next(validation),
        save=lambda s: log.append(("save", s.step)),
        on_step=lambda done: log.append(("step", done)),
        should_stop=should_stop,
    )
    batches = cycle([collate([DATASET[0], DATASET[1]]), collate([DATASET[2], DATASET[7]])])
    outcome = fit(
        model,
        make_optimizer(model, 0.0),
        batches,
        settings(**changes),
        state,
        hooks,
        lambda: float(next(ticks)),
    )
    return outcome, state, log


def test_order_of_evaluations_steps_and_saves():
    outcome, state, log = run([3.0, 2.0, 1.5, 1.0])
    assert outcome == "finished"
    order = [(kind, value.step if kind == "step" else value) for kind, value, *_ in log]
    assert order == [
        ("evaluate", 0), ("step", 1), ("step", 2), ("evaluate", 2), ("save", 2), ("step", 3), ("step", 4),
        ("evaluate", 4), ("save", 4), ("step", 5), ("step", 6), ("evaluate", 6), ("save", 6),
    ]  # fmt: skip
    assert all(training is False for kind, *rest in log if kind == "evaluate" for training in rest[1:])
    assert (state.best_step, state.best_loss) == (6, 1.0)
    assert state.tokens == 3 * (16 + 8 + 3)
    assert state.seconds == 6.0, "a step lasts from one reading of the clock to the next, and evaluations do not count"


def test_steps_report_rate_tokens_and_time():
    _, _, log = run([1.0] * 4, warmup_steps=3, accumulate=2)
    steps = [entry[1] for entry in log if entry[0] == "step"]
    assert [s.learning_rate for s in steps] == [learning_rate(n, 6, 0.01, 3) for n in range(1, 7)]
    assert {s.seconds for s in steps} == {1.0}
    assert {s.tokens for s in steps} == {27}
    assert steps[-1].loss < steps[0].loss


def test_it_stops_early_without_improvement():
    outcome, state, _ = run([9.0, 2.0, 2.0, 2.5, 1.0], steps=20, patience=2)
    assert outcome == "stopped_early"
    assert (state.step, state.best_step, state.worse) == (6, 2, 2)


def test_the_evaluation_before_training_is_never_the_best():
    _, state, _ = run([1.0, 5.0, 4.0, 4.5])
    assert (state.best_step, state.best_loss) == (4, 4.0)


def test_a_stop_saves_one_checkpoint():
    stops = iter([False] * 3 + [True])
    outcome, state, log = run([3.0, 2.0], should_stop=lambda: next(stops))
    assert outcome == "interrupted"
    assert state.step == 3
    assert [entry for entry in log if entry[0] == "save"] == [("save", 2), ("save", 3)]
    # An evaluated step is already saved.
    stops = iter([False] * 2 + [True])
    _, _, log = run([3.0, 2.0], should_stop=lambda: next(stops))
    assert [entry for entry in log if entry[0] == "save"] == [("save", 2)]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_non_finite_loss_never_reaches_the_weights(poison):
    history = []

    class Poisoned(Small):
        def forward(self, input_ids, use_cache):
            if self.training and len(history) == 3:
                self.poison = poison
            return super().forward(input_ids, use_cache)

    model = Poisoned()
    hooks = Hooks(evaluate=lambda: 1.0, on_step=lambda done: history.append(weights(model)))
    with pytest.raises(ScenarioError, match=r"the loss \((nan|inf)\) of step 4 is not finite.*learning rate") as error:
        fit(
            model, make_optimizer(model, 0.0), cycle([collate([DATASET[0]])]), settings(), State(), hooks, lambda: 0.0
        )  # fmt: skip
    assert error.value.kind == "non_finite"
    assert torch.equal(weights(model), history[-1])


def test_autocast_computes_in_bfloat16_over_float32_weights():
    model, dtypes = Small(), []
    model.head.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    batch = collate([DATASET[0]])
    plain = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), [batch], 0.0, 0.0)
    mixed = train_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        [batch],
        0.0,
        0.0,
        autocast_for(torch.device("cpu"), True),
    )
    assert dtypes == [torch.float32, torch.bfloat16]
    assert mixed[0] == pytest.approx(plain[0], rel=0.02)
    assert model.head.weight.dtype == torch.float32


def test_ignored_targets_do_not_count():
    logits = torch.tensor([[[2.0, 1.0, 0.1], [9.0, 0.0, 0.0]]])
    assert float(sum_cross_entropy(logits, torch.tensor([[1, -100]]))) == pytest.approx(1.41703, abs=1e-5)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 0.1),
        (5, 0.5),
        (10, 1.0),
        (60, 0.1 + 0.9 * (1 + math.cos(math.pi * 0.5)) / 2),
        (110, 0.1),
    ],
)
def test_the_rate_warms_up_and_decays_by_a_cosine(step, rate):
    assert learning_rate(step, steps=110, peak=1.0, warmup=10) == pytest.approx(rate)


def test_without_warm_up_the_first_step_has_the_peak_rate():
    assert learning_rate(1, steps=11, peak=3.0, warmup=0) == 3.0
    assert learning_rate(6, steps=11, peak=3.0, warmup=0) == pytest.approx(3 * 0.55)
    assert learning_rate(1, steps=1, peak=3.0, warmup=0) == 3.0


def test_training_that_ends_during_warm_up_never_reaches_the_peak():
    assert [learning_rate(s, steps=2, peak=1.0, warmup=4) for s in (1, 2)] == [0.25, 0.5]
