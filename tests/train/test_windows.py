import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.errors import UsageError
from llmtrack.train.windows import TrainingWindow, input_and_target, plan_training_windows


def test_the_target_is_the_input_moved_by_one():
    (window,) = plan_training_windows(4, length=3)
    assert input_and_target([2, 1, 4, 5], window) == ([2, 1, 4], [1, 4, 5])


def test_a_short_window_is_left_at_the_end():
    assert plan_training_windows(8, 3) == (TrainingWindow(0, 3), TrainingWindow(3, 6), TrainingWindow(6, 7))


def test_windows_overlap_where_the_stride_is_smaller():
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


def test_the_windows_are_those_by_which_a_stream_is_scored():
    """So that the validation loss of training is a rolling perplexity's."""
    from llmtrack.quality.windows import plan_windows as plan_scoring

    for tokens in range(2, 30):
        for length in range(1, 10):
            scored = plan_scoring(tokens, length, length)
            assert [t for w in plan_training_windows(tokens, length) for t in range(w.begin + 1, w.end + 1)] == [
                t for w in scored for t in range(w.first_scored, w.end)
            ]
