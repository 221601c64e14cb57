"""Score a text by one program as often as it is asked to; run by that program's own Python, which may have no llmtrack.

    python score.py plain|lm-eval|llmtrack MODEL_FOLDER DTYPE CONTEXT TEXT_FILE

Each line of standard input is a number of threads; each line of standard output what one call gave, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

Score = Callable[[str], "tuple[float, int]"]
"""Turns a text into its summed negative log-likelihood in nats and the number of tokens that were predicted."""


def plain(folder: str, dtype: str, context: int) -> Score:
    """Score as one writes it by hand: windows one after the other, whole logits, cross-entropy in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def score(text: str) -> tuple[float, int]:
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]])
        last, nats = ids.shape[1] - 1, 0.0
        for done in range(0, last, context):
            # The last window is as long as the others, and only what is new in it counts.
            end = min(done + context, last)
            window = ids[:, max(0, end - context) : end + 1]
            with torch.inference_mode():
                logits = model(window[:, :-1]).logits[0, done - end :].float()
                nats += float(torch.nn.functional.cross_entropy(logits, window[0, done - end :], reduction="sum"))
        return nats, last

    return score


def harness(folder: str, dtype: str, context: int) -> Score:
    """Score by lm-evaluation-harness' `loglikelihood_rolling`."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=folder, device="cpu", dtype=dtype, max_length=context, batch_size=1)

    def score(text: str) -> tuple[float, int]:
        request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
        return -float(model.loglikelihood_rolling([request], disable_tqdm=True)[0]), len(model.tok_encode(text))

    return score


def ours(folder: str, dtype: str, context: int) -> Score:
    """Score by llmtrack's `rolling` protocol."""
    from llmtrack import load_engine
    from llmtrack.quality.perplexity import score_rolling

    engine = load_engine(folder, device="cpu", dtype=dtype)

    def score(text: str) -> tuple[float, int]:
        quality = score_rolling(engine, [text], max_length=context, bos_rule="model", batch_size=1)
        return quality.loss * quality.tokens_scored, quality.tokens_scored

    return score


SCORERS = {"plain": plain, "lm-eval": harness, "llmtrack": ours}


def memory(field: str) -> float:
    """Return a figure of this process's memory in MiB: `VmRSS` now, `VmHWM` at most since it was reset."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def main(who: str, folder: str, dtype: str, context: str, text_file: str) -> None:
    """Load, warm up, and score whenever asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program prints is no answer
    text = Path(text_file).read_text(encoding="utf-8")
    score = SCORERS[who](folder, dtype, int(context))
    score(text[:200])  # weights that are mapped from a file are read when they are first used
    loaded = memory("VmRSS")
    for line in sys.stdin:
        torch.set_num_threads(int(line))
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        start, cpu = time.perf_counter(), time.process_time()
        nats, tokens = score(text)
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        figures = {"tokens/s": tokens / seconds, "loss": nats / tokens, "CPU s": cpu_s, "tokens": tokens}
        print(json.dumps({**figures, "MiB above the model": memory("VmHWM") - loaded}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
