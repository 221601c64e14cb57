"""Events are sent between processes unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.spec.events import Log, Progress, Warn, event_from_json, event_to_json
from tests.spec.test_scenario import failures, measurements

words = st.text(max_size=20)
events = st.one_of(
    st.builds(Log, words),
    st.builds(Warn, words),
    st.builds(Progress, words, words, st.none() | st.floats(0, 1)),
    measurements,
    failures,
)


@pytest.mark.slow(3)
@given(events)
def test_round_trip(event):
    line = json.dumps(event_to_json(event))
    assert "\n" not in line, "a line is an event"
    restored = event_from_json(json.loads(line))
    assert restored == event
    assert type(restored) is type(event)


def test_an_unknown_kind_is_refused():
    with pytest.raises(KeyError):
        event_from_json({"kind": "Rumour", "data": {}})
