"""Substitutions in documented commands, so that they end in seconds and need no network.

Everything else runs as written.
"""

from __future__ import annotations

# Parameters of entry points, as far as an experiment has them.
PARAMETERS = {
    "model": "synthetic:tiny",
    "executor": "inline",
    "max_new_tokens": "2",
    "min_repeats": "2",
    "min_seconds": "0",
    # Seconds per scenario: the calls of a tiny model vary too much for their intervals to become narrow.
    "max_seconds": "0.05",
    "lengths": "16,64",
    # Suite.
    "experiments": "precision,perplexity",
    "quick": "true",
    "focus": "none",
    # Quantization; end-to-end tests run the other recipes.
    "recipes": "onnx/int8-weight-only",
    # Training.
    "steps": "2",
    "sequence_length": "32",
    "validation_tokens": "64",
    "sample_tokens": "2",
    # Tuning; test_tune.py covers the rest. Whether one of two equals is better by 5 % takes minutes to find out.
    "new_tokens": "2",
    "budget": "10s",
    "margin": "50%",
    "space": "backend=torch precision=float32,bfloat16 threads=0",
}
# Only if the document sets the parameter, since other commands forbid it.
WHERE_GIVEN = {"max_tokens": "500"}
# Further parameters that a documented one requires: a recipe that uses it, and few tokens for its search.
WITH_IT = {"keep_quality": {"recipes": "onnx/int8-static", "calibration_tokens": "128"}}
# Only if the document does not set the parameter.
UNLESS_GIVEN = {"corpus": "my_texts.txt", "max_length": "256", "reference_tokens": "256", "sizes": "1,2"}

# Random weights have no chat template: code that contains this runs unchanged.
REAL_MODEL = "messages = "

CODE = {
    '"packaged:smollm2"': '"synthetic:tiny"',
    "max_new_tokens=32": "max_new_tokens=2, policy=llmtrack.RepeatPolicy(max_seconds=0.05)",
    "min_seconds=0.0": "min_seconds=0.0, max_seconds=0.05",
}

# Files of the reader that documents mention.
FILES = {
    "my_texts.jsonl": '{"text": "The first small text."}\n{"text": "And a second one."}\n',
    "my_texts.txt": "A text of the reader's own, long enough to train on. " * 40,
}

# Accepted exit codes: of a gate 3 (a rule is broken) and 2 (a value is missing); of a search 4 and 1 (the budget is too short
# here to prove or to find an answer); of a recommendation 1 (too few repeats to choose the best).
EXIT_CODES = {"gate": {0, 2, 3}, "tune": {0, 1, 4}, "recommend": {0, 1}}

# Words of llmtrack commands that the reader's store does not have, and their replacements.
WORDS = {
    "branch:main": "latest:precision#float32",
    "alias:production": "latest:precision#float32",
}
