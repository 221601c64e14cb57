"""Substitutions in documented commands, so that they end in seconds and need no network.

Everything else runs as written.
"""

from __future__ import annotations

# Parameters of entry points; only those are set that an experiment has.
PARAMETERS = {
    "model": "synthetic:tiny",
    "executor": "inline",
    "max_new_tokens": "2",
    "min_repeats": "2",
    "min_seconds": "0",
    # So many seconds each scenario takes: a tiny model's calls vary by more than any number of repeats would settle.
    "max_seconds": "0.2",
    # The tiny model's context holds 1,024 tokens.
    "lengths": "16,128",
    # Of a suite.
    "experiments": "precision,perplexity",
    "quick": "true",
    "focus": "none",
    # Of quantization; end-to-end tests run the others.
    "recipes": "onnx/int8-weight-only",
    # Of training.
    "steps": "2",
    "sequence_length": "32",
    "validation_tokens": "64",
    "sample_tokens": "2",
    # Of tuning; that test_tune.py has the rest of. The budget is a limit: of two ways, the search ends by itself.
    "new_tokens": "2",
    "budget": "10m",
    "space": "backend=torch precision=float32,bfloat16 threads=0",
}
# Only where the document gives a value, since others forbid one.
WHERE_GIVEN = {"max_tokens": "500"}
# What else a parameter asks for where the document gives it: a recipe that takes it, and few tokens for its search.
WITH_IT = {"keep_quality": {"recipes": "onnx/int8-static", "calibration_tokens": "128"}}
# Only where it gives none.
UNLESS_GIVEN = {"corpus": "my_texts.txt", "max_length": "256", "reference_tokens": "256"}

# Random weights have no chat template: pieces of code in which this stands run as they are.
REAL_MODEL = "messages = "

CODE = {
    '"packaged:smollm2"': '"synthetic:tiny"',
    "max_new_tokens=32": "max_new_tokens=2, policy=llmtrack.RepeatPolicy(max_seconds=0.2)",
    "min_seconds=0.0": "min_seconds=0.0, max_seconds=0.2",
}

# Files of the reader's own that documents speak of.
FILES = {
    "my_texts.jsonl": '{"text": "The first small text."}\n{"text": "And a second one."}\n',
    "my_texts.txt": "A text of the reader's own, long enough to train on. " * 40,
}

# A command may end with these, if not with 0: the gate says by 3 that a rule is broken, by 2 that a figure is missing; a search,
# by 4 and 1, that its budget was too short on this machine to prove an answer or to find one; a recommendation, by 1, that two
# or three repeats do not tell the best.
EXIT_CODES = {"gate": {0, 2, 3}, "tune": {0, 1, 4}, "recommend": {0, 1}}

# Words of a llmtrack command: what the reader's store does not have, and what it has instead.
WORDS = {
    "branch:main": "latest:precision#float32",
    "alias:production": "latest:precision#float32",
}
