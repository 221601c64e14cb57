from __future__ import annotations

import pytest

from llmtrack.host.packages import error_line


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("  x Error\nerror: no solution\nhint: try", "error: no solution"),
        ("Traceback\nValueError: bad\n", "ValueError: bad"),
        ("10%\r100%\nerror: see https://secret@index/simple", "error: see"),
        ("", "no output"),
    ],
)
def test_the_most_informative_line_of_an_output(output, line):
    assert error_line(output) == line
