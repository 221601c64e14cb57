"""The lines that reproduce a run do run the model."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from click.testing import CliRunner

import llmtrack
from experiments import baseline
from llmtrack.cli import main
from llmtrack.engines.text import chat_text
from llmtrack.errors import UsageError
from llmtrack.host.console import neutralize
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.reproduce import (
    PROMPT,
    as_loaded,
    generate_command,
    generate_program,
    measured_comment,
    reproduce_command,
    run_settings,
    variant_of,
)
from llmtrack.run.study.study import run_study
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.run import Run

VARIANT = Variant("synthetic:tiny", device="cpu", dtype="bfloat16", options=(("threads", 1),))
TASK = GenerateTask(("a",), max_new_tokens=3, use_cache=False)


TOLD = {
    "model": "synthetic:tiny",
    "backend": "torch",
    "device_requested": "cpu",
    "dtype_requested": "bfloat16",
    "quantization": "none",
    "threads": 1,
    "max_new_tokens": 3,
    "use_cache": False,
    "batch_size": 1,
}
RUN = Run("id", params=TOLD)


def run_of(**params) -> Run:
    return replace(RUN, params={**TOLD, **params})


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "task", [TASK, replace(TASK, use_cache=True, batch_size=3, pad_to_multiple=16)], ids=["one", "batch"]
)
def test_program_and_command_generate_the_same_text(task, capsys):
    exec(generate_program(VARIANT, task), {})
    printed = capsys.readouterr().out
    program, *words = shlex.split(generate_command(VARIANT, task))
    assert program == "llmtrack"
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert printed.strip()
    assert result.stdout == neutralize(printed)


def test_the_files_name_the_measured_weights():
    pinned = replace(VARIANT, model="org/name", revision="abc")
    assert measured_comment(pinned, {"weights_digest": "safetensors:12"}) == (
        "# measured with org/name, revision abc, safetensors:12\n"
    )
    assert measured_comment(VARIANT, {}) == "# measured with synthetic:tiny\n"


def test_a_tracked_run_yields_its_variant():
    assert variant_of(RUN) == VARIANT
    command, *lines = reproduce_command(RUN)
    assert command == generate_command(VARIANT, TASK)
    assert lines == generate_program(VARIANT, TASK).splitlines()


def test_a_batched_run_is_reproduced_in_batches():
    command, *lines = reproduce_command(run_of(batch_size=4, pad_to_multiple=16))
    assert command.count(PROMPT) == 4
    assert "--pad-to-multiple 16" in command
    assert f"generate_texts(engine, [{PROMPT!r}] * 4," in lines[-1]
    assert "pad_to_multiple=16" in lines[-1]


@pytest.mark.slow(4)
@pytest.mark.usefixtures("_known_ceilings", "steady_repeats")
def test_the_lines_of_recommend_run_the_model(tracker, uri, console, capsys, monkeypatch):
    monkeypatch.setattr("llmtrack.report.page.reports.write_report", lambda *of, **instructions: {})
    config = baseline.Config(
        model="synthetic:tiny",
        device="cpu",
        dtype="bfloat16",
        threads=1,
        max_new_tokens=3,
        warmup=0,
        min_repeats=2,
        min_seconds=0.0,
        max_seconds=0.1,
    )
    experiment = replace(baseline.build(config), plots=lambda runs, series: {})
    run_study(experiment, tracker=tracker, executor=InlineExecutor(), console=console)
    result = CliRunner().invoke(main, ["recommend", "--tracking-uri", uri], catch_exceptions=False)
    assert result.exit_code == 0
    instructions = result.stdout.partition("To run it that way:\n")[2]
    lines = [line[2:] for line in instructions.splitlines() if line.startswith("  ") or not line]
    command, program = lines[0], "\n".join(lines[1:])
    assert "--dtype bfloat16 --option threads=1" in command
    capsys.readouterr()
    exec(program, {})
    printed = capsys.readouterr().out
    words = shlex.split(command)
    generated = CliRunner().invoke(main, words[words.index("llmtrack") + 1 :], catch_exceptions=False)
    assert generated.exit_code == 0
    assert generated.stdout == neutralize(printed)
    assert printed.strip()


def test_a_recipe_keeps_the_options_that_are_not_its_defaults():
    requested = {"backend": "onnx", "dtype_requested": "float32", "quantization": "int8-weight-only"}
    run = run_of(**requested, block_size=128, threads=2)
    assert dict(variant_of(run).options) == {"block_size": 128, "threads": 2}


def test_a_run_without_generation_or_backend_has_no_lines():
    params = {name: value for name, value in TOLD.items() if name != "max_new_tokens"}
    assert reproduce_command(Run("id", params=params)) == []
    assert reproduce_command(run_of(backend="gone")) == []


def test_a_prompt_without_tokens_and_an_unknown_option_are_refused_in_one_line():
    for words, why in (
        (["generate", "--model", "synthetic:tiny", "--option", "colour=red", "a"], "takes no option"),
        (["generate", "--model", "nowhere:x", "a"], "error"),
        (["generate", "--model", "synthetic:tiny", "--chat", "a"], "no chat template"),
    ):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2
        assert why in result.output


def test_messages_use_the_chat_template():
    engine = llmtrack.load_engine("synthetic:tiny", device="cpu")
    engine.tokenizer.chat_template = (
        "{% for each in messages %}{% if each.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "<{{ each.role }}>{{ each.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    text = "<system>Be brief.<user>Hello<assistant>"
    assert chat_text(engine, messages) == text
    assert llmtrack.generate_text(engine, messages, 4) == llmtrack.generate_text(engine, text, 4) != ""
    with pytest.raises(UsageError, match="the chat template rejects these messages: no tools here"):
        chat_text(engine, [{"role": "tool", "content": "x"}])
    for wrong in ([{"content": "x"}], [*messages, "x"], [3]):
        with pytest.raises(UsageError, match="invalid message"):
            chat_text(engine, wrong)
    for wrong in (None, 3):
        with pytest.raises(UsageError, match="invalid prompt: give a text, or a list of"):
            llmtrack.generate_text(engine, wrong)


def test_the_lines_name_the_loaded_model():
    run = run_of(model="org/gone,org/there", model_id="org/there", revision="0123abc")
    command, *lines = reproduce_command(run)
    assert "--model org/there --revision 0123abc" in command
    assert "org/gone" not in "\n".join([command, *lines])
    variant_of_list = Variant("org/gone,packaged:smollm2")
    assert as_loaded(variant_of_list, {"model_id": "packaged:smollm2"}).model == "packaged:smollm2"
    assert as_loaded(variant_of_list, {}) == variant_of_list


def test_environment_variables_are_part_of_the_lines():
    run = replace(RUN, environment={"omp_num_threads": "2", "weights_digest": "safetensors:ab"})
    command, *lines = reproduce_command(run)
    assert command.startswith("env OMP_NUM_THREADS=2 llmtrack generate ")
    assert lines[:3] == ["import os", "", "os.environ.update({'OMP_NUM_THREADS': '2'})"]
    assert run_settings(run) == ["weights: safetensors:ab", "threads: 1", "OMP_NUM_THREADS=2"]


def test_random_weights_are_a_warning_wherever_loaded():
    with pytest.warns(UserWarning, match="synthetic:tiny has random weights"):
        llmtrack.load_engine("synthetic:tiny", device="cpu").close()
    result = CliRunner().invoke(main, ["generate", "--model", "synthetic:tiny", "--max-new-tokens", "2", "a"])
    assert result.exit_code == 0
    assert result.stderr.count("random weights") == 1
    assert "random" not in result.stdout
