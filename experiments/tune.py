"""What is the best way to run this model on this machine?"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from experiments.prompts import BASE_TEXT
from llmtrack import metrics as schema
from llmtrack.decide.candidates import Candidates
from llmtrack.decide.comparability import relative_perplexity
from llmtrack.decide.differences import change_text, ratio_text
from llmtrack.decide.pareto import pareto_front
from llmtrack.decide.recommend import parse_percent, parse_size
from llmtrack.decide.verdicts import difference_between
from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.experiment import Declaration, Experiment, OwnTable, SeriesOf
from llmtrack.host.formatting import significant
from llmtrack.report.pareto import pareto_plot
from llmtrack.report.sentences import reading as say
from llmtrack.report.terminal import make_console, print_line
from llmtrack.run.command import ConfigCommand
from llmtrack.run.executors.executor import Executor
from llmtrack.run.executors.pool import MOST_ON_GPU, Pool
from llmtrack.run.main import Performed, make_executor, open_tracker, print_location
from llmtrack.run.promote import promote
from llmtrack.run.reproduce import reproduce_command
from llmtrack.run.settings import HereOptions, JudgedText, ModelOptions
from llmtrack.run.study.plan import device_of
from llmtrack.run.tune.search_space import Space, make_space, parse_space, rows_of_work
from llmtrack.run.tune.trials import TuneGoal
from llmtrack.run.tune.tune import CHAMPION, run_tune
from llmtrack.spec.options import Option
from llmtrack.spec.parameter import read_number
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask, PerplexityTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.write.models import name_and_alias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

MORE = (
    "From a model and a machine to the answer, within `-P budget=10m`: every installed backend, recipe, precision and thread "
    "count, the most promising first, and the answer measured afresh against PyTorch in float32; see [docs/tune.md](docs/tune.md)"
)
# Metric of the quality cost.
PRICE = "reference_perplexity_ratio"
OBJECTIVES = (
    "decode_tokens_per_sec",
    "tokens_per_sec",
    "time_to_first_token_ms",
    "latency_per_sample_s",
    "model_size_mib",
    "joules_per_token",
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Config(JudgedText, ModelOptions, HereOptions):
    """Settings of tuning."""

    objective: Annotated[str, Option("Metric to optimize.", choices=OBJECTIVES)] = "decode_tokens_per_sec"
    budget: Annotated[str, Option("Total time, such as 90s, 10m or 1h.", min=1)] = "10m"
    max_perplexity_increase: Annotated[
        str | None, Option("Maximum increase over PyTorch in float32, such as 1%; none: any.", min=1)
    ] = "1%"
    max_memory: Annotated[str | None, Option("Maximum peak memory, such as 2GiB; none: any.", min=1)] = None
    max_ttft: Annotated[float | None, Option("Maximum milliseconds to the first token; none: any.", above=0)] = None
    prompt_tokens: Annotated[int, Option("Tokens of the prompt.", min=1)] = 128
    new_tokens: Annotated[int, Option("New tokens per row.", min=1)] = 32
    margin: Annotated[
        str, Option("Candidates that differ by less count as equal, and the simpler one is recommended.", min=1)
    ] = "5%"
    space: Annotated[
        str | None,
        Option(
            "Only these, such as 'backend=onnx recipe=int8* threads=1,2': also precision, batch_size, use_cache, "
            "pad_to_multiple, and options of a backend or recipe (block_size=32,128); none: all that can run here.",
            min=1,
        ),
    ] = None
    register: Annotated[
        str | None,
        Option(
            "Name in MLflow's model registry under which a proven answer is registered, with the alias champion; none: not.",
            min=1,
            tracked=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.register is not None:
            name_and_alias(f"{self.register}@{CHAMPION}")
        self.seconds, self.limits, self.most_perplexity, self.near  # noqa: B018 - refuse what cannot be read
        parse_space(self.space or "")

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        match = re.fullmatch(r"\s*([\d.]+)\s*(s|m|min|h|)\s*", self.budget)
        if match is None:
            raise UsageError(f"budget {self.budget!r} is not a duration: use for example 90s, 10m or 1h")
        return read_number("budget", match[1], Option("", above=0)) * _UNITS[match[2]]

    @property
    def most_perplexity(self) -> float | None:
        """Maximum ratio of the perplexity to the baseline's."""
        return None if self.max_perplexity_increase is None else 1 + parse_percent(self.max_perplexity_increase)

    @property
    def near(self) -> float:
        """The margin as a share."""
        return parse_percent(self.margin)

    @property
    def limits(self) -> dict[str, float]:
        """Upper bounds of the answer, by metric."""
        bounds = {}
        if self.max_memory is not None:
            bounds["peak_memory_mib"] = parse_size(self.max_memory)
        if self.max_ttft is not None:
            bounds["time_to_first_token_ms"] = self.max_ttft
        return bounds


TABLE = OwnTable(
    columns=(
        "race_place",
        "tokens_per_sec",
        "decode_tokens_per_sec",
        "time_to_first_token_ms",
        PRICE,
        "peak_memory_mib",
        "race_reason",
    ),
    compared=(),
)


def space_of(config: Config, machine: Mapping[str, str]) -> Space:
    """Return the search space on a machine.

    Raises:
        UsageError: it is empty.
    """
    narrowed = parse_space(config.space or "")
    task = GenerateTask(
        (BASE_TEXT,) * rows_of_work(config.objective, narrowed),
        prompt_tokens=config.prompt_tokens,
        max_new_tokens=config.new_tokens,
    )
    return make_space(config.variant(), task, config.objective, machine, narrowed)


def build(config: Config) -> Experiment:
    """Return the experiment: candidates depend on the machine and are chosen at run time."""
    return DECLARED.asking(config, ())


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw the Pareto front of the objective and quality."""
    objective = _objective(runs)
    done = _timed_and_scored(runs, objective)
    if len(done) < 2:
        return {}
    best = _at(done, "winner", "unproven")
    return {"pareto": pareto_plot(Candidates(done, (), done), objective, PRICE, best.run_id if best else "")}


def reading(runs: Runs) -> list[str]:
    """State the answer and its evidence, what was dropped, and the commands to run it."""
    objective = _objective(runs)
    done = runs.measured(objective) if objective else Runs()
    best = _at(done, "winner", "unproven")
    if best is None:
        return [_no_answer(runs), *runs.unfinished()]
    base = runs.baseline
    proven = best.text("race_place") == "winner"
    lines = [_answer(best, base, objective) if proven else _best_so_far(best, base, objective)]
    fallback = _at(done, "proven")
    if fallback is not None:
        lines.append(f"Best proven so far: {_against(fallback, base, objective)}.")
    equal = [run.name for run in _all_at(runs, "equal")]
    if equal:
        names = ", ".join(equal)
        lines.append(f"No significant difference to it: {names}; {best.name} is the simpler one.")
    dropped = len(_all_at(runs, "dropped"))
    if dropped:
        were = "was" if dropped == 1 else "were"
        lines.append(f"Of {len(runs)} ways {dropped} {were} dropped; `race_reason` of each run says why.")
    lines += _never_started(best)
    lines += _front(_timed_and_scored(runs, objective), objective, best)
    commands = reproduce_command(best)
    if commands:
        lines += [f"Run it: {commands[0]}", f"In Python: {'; '.join(line for line in commands[1:] if line)}"]
    return lines


def _at(runs: Runs, *places: str) -> Run | None:
    """Return the first run in one of the places, or None."""
    return next((run for place in places for run in _all_at(runs, place)), None)


def _all_at(runs: Runs, place: str) -> Runs:
    return runs.where(lambda run: run.text("race_place") == place)


def _never_started(best: Run) -> list[str]:
    """Name the candidates that were never started, and why."""
    lines = []
    if best.has("race_not_tried"):
        lines.append(f"Not tried: {best.text('race_not_tried')}.")
    if best.has("race_hopeless"):
        names = best.text("race_hopeless").split(", ")
        were = f"{names[0]} was" if len(names) == 1 else f"{len(names)} ways were"
        lines.append(f"{were} not started: by prediction no winner, see `not_tried.json`.")
    return lines


def _best_so_far(best: Run, base: Run | None, objective: str) -> str:
    """Name the best candidate and the missing proof."""
    why = best.text("race_reason").removeprefix("best so far, not proven: ")
    return f"Best so far, not proven: {_against(best, base, objective)}. Missing: {why}."


def _no_answer(runs: Runs) -> str:
    reason = next((run.text("race_reason") for run in runs), "nothing was measured")
    return f"There is no answer: {reason}."


def _answer(best: Run, base: Run | None, objective: str) -> str:
    if base is None or base.run_id == best.run_id:
        where = f"{best.text('model_id')} on {best.text('device')}"
        return (
            f"Run {best.name} for {where}: {_amount(best, objective)}; nothing that keeps to the limits was found to be "
            "better."
        )
    return f"Run {_against(best, base, objective)}."


def _against(best: Run, base: Run | None, objective: str) -> str:
    """Format what a run reaches, and how it compares with the baseline."""
    where = f"{best.name} for {best.text('model_id')} on {best.text('device')}"
    amount = _amount(best, objective)
    if base is None or base.run_id == best.run_id or not base.has(objective):
        return f"{where}: {amount}"
    difference = difference_between(base, best, objective)
    if difference.ratio is None or not difference.conclusive:
        return f"{where}: {amount} (against {base.name}: {difference.words})"
    fresh = (
        f", measured afresh {difference.n_candidate} times against {difference.n_baseline}"
        if difference.repeated and best.text("race_place") != "unproven"
        else ""
    )
    return (
        f"{where}: {ratio_text(difference.ratio, difference.repeated)} the {objective} of {base.name}"
        f"{_quality(best, base)}: {amount}{fresh}{say.in_doubt(difference)}"
    )


def _amount(run: Run, objective: str) -> str:
    unit = schema.metric(objective).unit
    memory = f", {run.metrics['peak_memory_mib']:,.0f} MiB peak memory" if run.has("peak_memory_mib") else ""
    return f"{significant(run.metrics[objective])} {objective if unit == '-' else unit}{memory}"


def _quality(best: Run, base: Run) -> str:
    ratio, _ = relative_perplexity(base, best)
    return "" if ratio is None else f" at {change_text(ratio)} perplexity"


def _front(done: Runs, objective: str, best: Run) -> list[str]:
    """Name the Pareto front, and what keeps the answer off it."""
    if len(done) < 2:
        return []
    standings = list(zip(done, pareto_front(done, (objective, PRICE)), strict=True))
    names = [run.name for run, standing in standings if standing.position == "on"]
    if not names:
        return []
    off = ""
    answer = next((standing for run, standing in standings if run.run_id == best.run_id), None)
    if answer is not None and answer.dominated_by:
        better = answer.dominated_by[0]
        off = f"; {best.name} is not, as {better} is better in one and not significantly worse in the other"
    elif answer is not None and answer.position == "open":
        off = f"; whether {best.name} is too, is {answer.why}"
    return [f"On the front of {objective} and perplexity: {', '.join(names)}{off}."]


def _timed_and_scored(runs: Runs, objective: str) -> Runs:
    return runs.measured(objective, PRICE) if objective else Runs()


def _objective(runs: Runs) -> str:
    return next((run.text("tuned_for") for run in runs if run.has("tuned_for")), "")


@contextmanager
def prepared(config: Config, make: Callable[[], Executor]) -> Iterator[tuple[Pool, Space, TuneGoal]]:
    """Open a pool of workers; yield it with the search space of its machine and the goal."""
    from llmtrack.quality.corpora import load_corpus

    started = time.monotonic()
    with closing(Pool(make, reuse=True)) as pool:
        machine = pool.machine()
        start = time.monotonic() - started
        space = space_of(config, machine)
        cpus = int(machine.get("threads") or 1)
        if device_of(space.candidates[0].variant.device, machine) != "cpu":
            pool.most, pool.spare, cpus = MOST_ON_GPU, True, 0
        goal = TuneGoal(
            config.objective,
            config.seconds,
            load_corpus(config.corpus),
            PerplexityTask(corpus=config.corpus),
            config.most_perplexity,
            config.limits,
            config.near,
            cpus,
            start,
        )
        yield pool, space, goal


def perform(config: Config, console: Console) -> Performed:
    """Tune, and return the result."""
    began = time.monotonic()
    with prepared(config, lambda: make_executor(config)) as (pool, space, goal):
        tracker = open_tracker(config)
        experiment = build(config)
        experiment = replace(
            experiment,
            scenarios=tuple(
                Scenario(candidate.name, candidate.variant, candidate.task) for candidate in space.candidates
            ),
            settings={**experiment.settings, "candidates": len(space.candidates)},
        )
        result = run_tune(
            experiment, space, goal, tracker=tracker, pool=pool, console=console, resume=config.resume, began=began
        )
        return Performed(tracker, result, experiment)


def run(config: Config) -> None:
    """Tune and exit with the code of the study."""
    console = make_console(outlive=True)
    done = perform(config, console)
    tracked = done.result.tracked
    if tracked is not None:
        for winner in _all_at(tracked, "winner"):
            print_line(console, "\n".join(["Run it that way:", "", *reproduce_command(winner), ""]))
            if config.register is not None and done.result.exit_code == 0:
                print_line(console, _register(winner, f"{config.register}@{CHAMPION}", done.tracker.tracking_uri))
    print_location(console, done.tracker, done.result.study)
    sys.exit(done.result.exit_code)


def _register(winner: Run, target: str, tracking_uri: str) -> str:
    """Register the answer, and describe the result; a failure only costs the registration."""
    try:
        promoted = promote(winner.run_id, target, tracking_uri)
    except LlmtrackError as error:
        return f"not registered ({error}); try again: llmtrack promote {winner.run_id} --as {shlex.quote(target)}"
    return f"Registered: {promoted.uri} is version {promoted.version}; serve it: mlflow models serve -m {shlex.quote(promoted.uri)}"


DECLARED = Declaration(
    "tune",
    "What is the best way to run this model on this machine?",
    Config,
    build,
    plots,
    reading,
    table=TABLE,
    more=MORE,
    typed=True,
)

main = ConfigCommand(DECLARED.name, Config, run, help=DECLARED.question)

if __name__ == "__main__":
    main()
