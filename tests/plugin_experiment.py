"""An experiment of another package: parameters, scenarios and reading in one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmtrack.experiment import Declaration, Experiment
from llmtrack.options import Option
from llmtrack.run.command import command
from llmtrack.run.settings import Settings
from llmtrack.scenario import Scenario
from llmtrack.task import GenerateTask


@dataclass(frozen=True)
class Config(Settings):
    """Parameters of the experiment."""

    words: Annotated[tuple[str, ...], Option("Prompts to compare.")] = ("sea", "harbour")


def build(config: Config) -> Experiment:
    """Build the experiment: a scenario for each word as its prompt."""
    scenarios = [
        Scenario(
            word,
            config.variant(),
            GenerateTask((word,), max_new_tokens=config.max_new_tokens),
            config.repeat(),
            baseline=word == config.words[0],
        )
        for word in config.words
    ]
    return DECLARED.asking(config, scenarios)


def reading(runs) -> list[str]:
    """Count the words."""
    return [f"{len(runs)} words were measured."]


DECLARED = Declaration("plugin_words", "Does the word matter?", Config, build, reading=reading)
main = command(DECLARED)
