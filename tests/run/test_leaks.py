"""No output carries credentials: neither ours nor that of libraries, here or in a worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llmtrack.host.console import protect_stream
from llmtrack.spec.events import Log
from tests.run.study.test_study import lengths, scripted, study

pytestmark = pytest.mark.usefixtures("_known_ceilings")

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUv"
LEAKS = (
    "http://admin:password@host/x",
    "https://user%40x:p%40ss%2Fw@host",
    "s3://key:p:q@r@bucket/a",
    f"/models/{TOKEN}/config.json",
    f"https://{TOKEN}@huggingface.co/m",
    "http://proxy-user:pr0xy@proxy:3128",
    "Authorization: Bearer abcdefghijkl",
    "https://blob/x?sig=abcdefgh&se=1",
    "github_pat_11ABCDEFG0123456789",
    "my-own-secret-value",
)
SECRETS = ("password", "p%40ss", "p:q@r", TOKEN, "pr0xy", "abcdefghijkl", "abcdefgh&", "11ABCDEFG", "my-own-secret")

PROGRAM = """
import logging, sys, warnings
from rich.console import Console
{begin}
logging.basicConfig(level=logging.INFO)
for text in {leaks!r}:
    print("out", text)
    print("err", text, file=sys.stderr)
    warnings.warn("warned " + text)
    logging.getLogger("library").warning("logged %s", text)
raise RuntimeError("ended by " + {leaks!r}[0])
"""
BEGIN = {
    "parent": "from llmtrack.host.console import protected_output\nguard = protected_output()\nguard.__enter__()",
    "worker": "from llmtrack.worker.process import _take_stdout\n_take_stdout()",
}


@pytest.mark.slow(6)
@pytest.mark.parametrize("where", sorted(BEGIN))
def test_library_output_is_redacted(where):
    code = PROGRAM.format(begin=BEGIN[where], leaks=LEAKS)
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SOME_API_KEY": "my-own-secret-value"},
        capture_output=True,
        text=True,
    )
    output = process.stdout + process.stderr
    assert output.count("out ") >= len(LEAKS)
    assert output.count("logged") >= len(LEAKS)
    # Python shows the line of code that warned or raised, which is this test's own.
    lines = [line for line in output.splitlines() if line.startswith(("out", "err", "WARNING", "RuntimeError"))]
    assert len(lines) >= 3 * len(LEAKS)
    for secret in SECRETS:
        assert not any(secret in line for line in lines), secret


@pytest.mark.slow(2)
def test_output_of_a_study_is_redacted(tracker, console, capsys):
    class Tells(type(scripted())):
        def run(self, scenarios, emit):
            for text in LEAKS:
                emit(Log(f"Loaded: {text} | device=cpu"))
            super().run(scenarios, emit)

    executor = scripted()
    executor.__class__ = Tells
    console.file = protect_stream(console.file)
    study(tracker, console, lengths(4, 8), executor)
    printed = console.file.getvalue()
    assert printed.count("Loaded: ") == len(LEAKS) + 1
    for secret in SECRETS[:-1]:
        assert secret not in printed


@pytest.mark.slow(2)
def test_mlflow_prints_no_address_at_the_end_of_a_run(tracker, capsys):
    started = tracker.start_study("precision", "q", {}, {})
    tracker.finish_study(started, "finished")
    assert os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] == "true"
    assert capsys.readouterr().out == ""
