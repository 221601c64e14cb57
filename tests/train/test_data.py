from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.train.data import IGNORED, WindowDataset, batches, sample_order
from llmtrack.train.windows import plan_training_windows


@pytest.mark.slow(1)
@given(size=st.integers(1, 30), seed=st.integers(0, 5), start=st.integers(0, 100))
def test_an_order_can_be_taken_up_anywhere(size, seed, start):
    whole = list(islice(sample_order(size, seed), start + 40))
    assert list(islice(sample_order(size, seed, start), 40)) == whole[start:]


@given(size=st.integers(1, 30), seed=st.integers(0, 5))
def test_each_epoch_has_every_window_once(size, seed):
    order = list(islice(sample_order(size, seed), 3 * size))
    for epoch in range(3):
        assert sorted(order[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_epochs_and_seeds_are_shuffled_differently():
    first, second = (list(islice(sample_order(50, 0, start), 50)) for start in (0, 50))
    other = list(islice(sample_order(50, 1), 50))
    assert len({tuple(first), tuple(second), tuple(other), tuple(range(50))}) == 4


@pytest.fixture
def dataset():
    ids = list(range(100, 124))
    return WindowDataset(ids, plan_training_windows(len(ids), 5))  # 4 windows of 5, and one of 3


def test_short_windows_are_padded_and_do_not_count(dataset):
    assert [len(read) for read, _ in dataset] == [5, 5, 5, 5, 3]
    seen = {}
    for batch in islice(batches(dataset, 2, seed=0), 5):  # two epochs
        assert batch.inputs.shape == batch.targets.shape
        counted = batch.targets != IGNORED
        assert batch.tokens == int(counted.sum())
        assert torch.equal(batch.targets[counted], batch.inputs[counted] + 1)
        assert (batch.inputs[~counted] == 0).all()
        for target in batch.targets[counted].tolist():
            seen[target] = seen.get(target, 0) + 1
    assert seen == dict.fromkeys(range(101, 124), 2)


def test_batches_go_on_where_they_were_and_leave_the_random_state_alone(dataset):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    whole = list(islice(batches(dataset, 2, seed=7), 9))
    rest = list(islice(batches(dataset, 2, seed=7, start=8), 5))
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(whole[4:], rest, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
