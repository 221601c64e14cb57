from itertools import islice

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from llmtrack.errors import UsageError
from llmtrack.train.data import (
    IGNORED,
    TrainingWindow,
    WindowDataset,
    batches,
    input_and_target,
    plan_training_windows,
    sample_order,
    split_texts,
)

TEXT = st.text("ab \n", min_size=1, max_size=40).filter(str.strip)


@pytest.mark.slow(1)
@given(st.lists(TEXT, min_size=2, max_size=12, unique=True), st.floats(0.01, 0.99))
def test_each_document_is_on_one_side_in_order(texts, share):
    split = split_texts(texts, share, "document")
    assert split.method == "document"
    assert split.train
    assert split.validation
    assert sorted(split.train + split.validation) == sorted(texts)
    assert [text for text in texts if text in split.train] == list(split.train)


@pytest.mark.slow(1)
@given(st.lists(TEXT, min_size=1, max_size=6), st.integers(1, 5))
def test_equal_documents_are_on_the_same_side(texts, copies):
    texts = [*texts * copies, "one that is different"]
    split = split_texts(texts, 0.5, "document")
    assert not set(split.train) & set(split.validation)


@given(st.lists(TEXT, min_size=1, max_size=6), st.floats(0.05, 0.95))
def test_a_contiguous_split_holds_out_the_end(texts, share):
    try:
        split = split_texts(texts, share, "contiguous")
    except UsageError:
        assume(False)  # too short to have two sides
    # White space may be dropped where it would be a side of its own.
    train, held_out = ("".join("".join(side).split()) for side in (split.train, split.validation))
    assert train
    assert held_out
    assert train + held_out == "".join("".join(texts).split())


def test_the_held_out_share_is_about_the_requested_one():
    texts = [f"{number:03} " + "x" * 96 for number in range(200)]
    assert sum(map(len, split_texts(texts, 0.1).validation)) == 0.1 * 200 * 100
    document = "\n".join(texts)
    split = split_texts([document], 0.1)
    assert split.method == "contiguous"
    assert "".join(split.train + split.validation) == document
    assert 0.09 < len(split.validation[0]) / len(document) <= 0.11
    assert split.train[0].endswith("\n")


def test_added_documents_do_not_move_others():
    texts = [f"document {number}" * 5 for number in range(50)]
    before = set(split_texts(texts, 0.2).validation)
    after = set(split_texts([*texts, *(f"new {number}" for number in range(5))], 0.2).validation)
    assert len(before & after) >= len(before) - 2


def test_no_held_out_token_is_in_a_training_window():
    """Each word is a distinct token, so a leak would show."""
    words = [f"w{number}" for number in range(500)]
    text = "\n".join(" ".join(words[start : start + 10]) for start in range(0, 500, 10))
    for texts in ([text], text.split("\n")):
        split = split_texts(texts, 0.2)
        seen = []
        for side in (split.train, split.validation):
            ids = " ".join(side).split()
            windows = plan_training_windows(len(ids), length=16, stride=3)
            seen.append({t for w in windows for part in input_and_target(ids, w) for t in part})
        assert not seen[0] & seen[1]
        assert seen[0] | seen[1] == set(words)


@pytest.mark.parametrize(
    ("texts", "share", "method", "message"),
    [
        (["a", "b"], 0.0, "auto", "share 0 is not possible"),
        (["a", "b"], 1.0, "auto", "share 1 is not possible"),
        (["a", "b"], 0.5, "random", "no split 'random'"),
        (["only one"], 0.5, "document", "one side would be empty"),
        (["x"], 0.5, "contiguous", "one side would be empty"),
    ],
)
def test_an_impossible_split_is_refused(texts, share, method, message):
    with pytest.raises(UsageError, match=message):
        split_texts(texts, share, method)


def test_the_target_is_the_input_shifted_by_one():
    (window,) = plan_training_windows(4, length=3)
    assert input_and_target([2, 1, 4, 5], window) == ([2, 1, 4], [1, 4, 5])


def test_only_the_last_window_is_short():
    assert plan_training_windows(8, 3) == (TrainingWindow(0, 3), TrainingWindow(3, 6), TrainingWindow(6, 7))


def test_windows_overlap_if_the_stride_is_smaller_than_the_length():
    assert plan_training_windows(7, 4, 2) == (TrainingWindow(0, 4), TrainingWindow(2, 6))
    assert plan_training_windows(8, 4, 2) == (
        TrainingWindow(0, 4),
        TrainingWindow(2, 6),
        TrainingWindow(4, 7),
    )


@pytest.mark.parametrize("tokens", [0, 1])
def test_nothing_to_predict_gives_no_window(tokens):
    assert plan_training_windows(tokens, 4) == ()


@pytest.mark.parametrize(("length", "stride"), [(0, 0), (4, 5), (4, -1)])
def test_impossible_windows_are_refused(length, stride):
    with pytest.raises(UsageError, match="is not possible"):
        plan_training_windows(10, length, stride)


def test_every_token_after_the_first_is_a_target_for_all_small_sizes():
    for tokens in range(2, 20):
        for length in range(1, 12):
            for stride in range(length + 1):
                windows = plan_training_windows(tokens, length, stride)
                targets = [t for w in windows for t in input_and_target(range(tokens), w)[1]]
                assert set(targets) == set(range(1, tokens))
                if stride in (0, length):
                    assert targets == list(range(1, tokens))
                assert all(w.length == length for w in windows[:-1])
                assert 1 <= windows[-1].length <= length


@given(tokens=st.integers(2, 400), length=st.integers(1, 64), data=st.data())
def test_each_target_follows_its_input(tokens, length, data):
    stride = data.draw(st.integers(0, length))
    ids = [token * 7 for token in range(tokens)]
    for window in plan_training_windows(tokens, length, stride):
        read, predicted = input_and_target(ids, window)
        assert len(read) == len(predicted) == window.length
        assert read[1:] == predicted[:-1]
        assert predicted[-1] == read[-1] + 7


def test_training_windows_equal_scoring_windows():
    """The validation loss of training is thus a rolling perplexity's."""
    from llmtrack.quality.windows import plan_windows as plan_scoring

    for tokens in range(2, 30):
        for length in range(1, 10):
            scored = plan_scoring(tokens, length, length)
            assert [t for w in plan_training_windows(tokens, length) for t in range(w.begin + 1, w.end + 1)] == [
                t for w in scored for t in range(w.first_scored, w.end)
            ]


@pytest.mark.slow(1)
@given(size=st.integers(1, 30), seed=st.integers(0, 5), start=st.integers(0, 100))
def test_an_order_can_be_resumed_anywhere(size, seed, start):
    order = list(islice(sample_order(size, seed), start + 40))
    assert list(islice(sample_order(size, seed, start), 40)) == order[start:]


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


def test_short_windows_are_padded_and_pads_are_ignored(dataset):
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


def test_batches_resume_and_preserve_the_random_state(dataset):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    expected = list(islice(batches(dataset, 2, seed=7), 9))[4:]
    resumed = list(islice(batches(dataset, 2, seed=7, start=8), 5))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(expected, resumed, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
