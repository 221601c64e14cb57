"""The `llmtrack` command: its entry point, the commands, their options, `doctor` and `init`."""

from llmtrack.host.signals import interrupt_in_a_line

interrupt_in_a_line()

from llmtrack.cli.commands import main as main  # noqa: E402 - the imports take a while, and Ctrl-C may come meanwhile
