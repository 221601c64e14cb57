"""Time `generate` as one would without a benchmark tool: a model, a prompt, a clock. Independent of llmtrack.

python benchmarks/by_hand.py MODEL_FOLDER "text of a prompt" 32
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import torch


class Clock:
    """A streamer that records the time of each token; `generate` passes the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        """Record the time."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing."""


@torch.inference_mode()
def measure(model: Any, ids: list[int], new_tokens: int, pad_id: int) -> dict[str, float]:
    """Return the total seconds, and the milliseconds to the first token and between tokens."""
    prompt, clock = torch.tensor([ids]), Clock()
    start = time.perf_counter()
    model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=pad_id,
        streamer=clock,
    )
    end = time.perf_counter()
    _, first, *_, last = clock.times
    return {
        "total": end - start,
        "time to first token": 1000 * (first - start),
        "inter-token latency": 1000 * (last - first) / (new_tokens - 1),
    }


def main(folder: str, text: str, new_tokens: int, repeats: int = 5) -> None:
    """Print the medians over a few repeats, after a warm-up."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    figures = [
        measure(model, tokenizer(text).input_ids, new_tokens, tokenizer.eos_token_id) for _ in range(repeats + 1)
    ]
    for name in figures[0]:
        print(name, median(repeat[name] for repeat in figures[1:]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
