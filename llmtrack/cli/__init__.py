"""The `llmtrack` command: its entry point, the commands, their options, `doctor` and `init`."""

from llmtrack.cli.commands import main as main
