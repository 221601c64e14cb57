import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.errors import UsageError
from llmtrack.train.split import split_texts
from llmtrack.train.windows import input_and_target, plan_training_windows

TEXT = st.text("ab \n", min_size=1, max_size=40).filter(str.strip)


@pytest.mark.slow(1)
@given(st.lists(TEXT, min_size=2, max_size=12, unique=True), st.floats(0.01, 0.99))
def test_documents_fall_on_one_side_and_keep_their_order(texts, share):
    split = split_texts(texts, share, "document")
    assert split.how == "document"
    assert split.train
    assert split.validation
    assert sorted(split.train + split.validation) == sorted(texts)
    assert [text for text in texts if text in split.train] == list(split.train)


@pytest.mark.slow(1)
@given(st.lists(TEXT, min_size=1, max_size=6), st.integers(1, 5))
def test_equal_documents_never_stand_on_both_sides(texts, copies):
    texts = [*texts * copies, "one that is different"]
    split = split_texts(texts, 0.5, "document")
    assert not set(split.train) & set(split.validation)


@given(st.lists(TEXT, min_size=1, max_size=6), st.floats(0.05, 0.95))
def test_a_contiguous_split_holds_out_the_end(texts, share):
    try:
        split = split_texts(texts, share, "contiguous")
    except UsageError:
        return  # too short to have two sides
    # White space may be dropped where it would be a side of its own.
    train, held = ("".join("".join(side).split()) for side in (split.train, split.validation))
    assert train
    assert held
    assert train + held == "".join("".join(texts).split())


def test_the_share_is_about_what_was_asked():
    texts = [f"{number:03} " + "x" * 96 for number in range(200)]
    held = sum(map(len, split_texts(texts, 0.1).validation))
    assert held == 0.1 * 200 * 100
    (one,) = ["\n".join(texts)]
    split = split_texts([one], 0.1)
    assert split.how == "contiguous"
    assert "".join(split.train + split.validation) == one
    assert 0.09 < len(split.validation[0]) / len(one) <= 0.11
    assert split.train[0].endswith("\n")


def test_a_document_stays_on_its_side_when_others_come():
    texts = [f"document {number}" * 5 for number in range(50)]
    held = set(split_texts(texts, 0.2).validation)
    more = split_texts([*texts, *(f"new {number}" for number in range(5))], 0.2)
    assert len(held & set(more.validation)) >= len(held) - 2


def test_no_token_of_a_held_out_window_is_in_a_training_window():
    """Each word of the corpus is one token of its own, so that a leak would show."""
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
    ("texts", "share", "how", "says"),
    [
        (["a", "b"], 0.0, "auto", "share 0 is not possible"),
        (["a", "b"], 1.0, "auto", "share 1 is not possible"),
        (["a", "b"], 0.5, "random", "no split 'random'"),
        (["only one"], 0.5, "document", "one side would be empty"),
        (["x"], 0.5, "contiguous", "one side would be empty"),
    ],
)
def test_an_impossible_split_is_refused(texts, share, how, says):
    with pytest.raises(UsageError, match=says):
        split_texts(texts, share, how)
