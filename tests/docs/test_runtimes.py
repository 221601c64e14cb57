"""The table of docs/backends.md is generated from tracked runs, between its markers."""

from __future__ import annotations

import pandas as pd

from docs.runtimes import BEGIN, END, PAGE, table, with_table


def run(backend: str, dtype: str, quantization: str = "none", **more):
    values = {"backend": backend, "dtype": dtype, "quantization": quantization, "threads": 2, "batch_size": 1}
    values |= {"prompt_tokens": 64, "start_time": pd.Timestamp("2026-11-28 21:05"), "warnings": ""}
    return values | {"env.cpu": "A CPU", "env.cpu_cores": 2} | more


RUNS = [  # oldest first
    run("torch", "float32", decode_tokens_per_sec=20.0, perplexity=30.0),
    run("llamacpp", "Q4_1", prefill_tokens_per_sec=50.0, decode_tokens_per_sec=90.0),
    run("llamacpp", "Q4_1", batch_size=4, decode_tokens_per_sec=160.0, warnings="the machine was busy: ..."),
    run("llamacpp", "Q4_1", prompt_tokens=256, prefill_tokens_per_sec=338.4, decode_tokens_per_sec=120.6, file_size_mib=94.2,
        load_time_s=0.51, memory_bandwidth_utilization=0.444, perplexity=30.3, kl_divergence=0.003, top1_agreement=0.973,
        **{"spread/decode_tokens_per_sec.ci_low": 118.0, "spread/decode_tokens_per_sec.ci_high": 122.4}),
    run("torch", "float32", prompt_tokens=256, decode_tokens_per_sec=16.9, perplexity=30.0),
    run("onnx", "int8 weights (float32)", "int8-mixed", prompt_tokens=256, decode_tokens_per_sec=84.0, perplexity=30.6),
]  # fmt: skip


def test_a_row_for_each_runtime_recipe_and_number_of_threads():
    conditions, _, head, _, *rows = table(pd.DataFrame(RUNS[::-1])).splitlines()
    assert conditions.startswith("Taken on 28 November 2026: A CPU, 2 cores.")
    assert conditions.endswith("In 1 of 6 cells other programs took a part of the CPU.")
    assert "| prefill, 64 tokens | prefill, 256 tokens | decode behind 256 | MBU | decode, batch 4 |" in head
    assert rows == [
        "| torch float32 | 2 |  |  |  |  | 16.9 |  |  | 30.00 |  |  |",
        "| llamacpp Q4_1 | 2 | 94 | 0.5 | 50.0 | 338 | 121 (118 to 122) | 44% | 160 | +1.00% | 0.0030 | 97.3% |",
        "| onnx int8-mixed | 2 |  |  |  |  | 84.0 |  |  | +2.00% |  |  |",
    ]


def test_only_what_is_between_the_markers_changes():
    page = PAGE.read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    new = table(pd.DataFrame(RUNS[::-1]))
    assert with_table(page, new) == f"{before}{BEGIN}{inside}\n{new}{END}{after}", "another machine's stands below"


def test_a_table_replaces_that_of_its_own_machine_only():
    first, second, newer = (
        table(pd.DataFrame([{**row, "env.cpu": cpu, "decode_tokens_per_sec": speed} for row in RUNS[::-1]]))
        for cpu, speed in (("An Intel", 20.0), ("An AMD", 30.0), ("An Intel", 40.0))
    )
    page = f"before {BEGIN}{END} after"
    assert with_table(page, first) == f"before {BEGIN}{first}{END} after"
    both = with_table(with_table(page, first), second)
    assert both == f"before {BEGIN}{first}\n{second}{END} after"
    assert with_table(both, newer) == f"before {BEGIN}{newer}\n{second}{END} after"
