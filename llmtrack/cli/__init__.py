"""The `llmtrack` command: its entry point, the commands, their options, `doctor` and `init`."""

from llmtrack.host.signals import print_interrupt_in_one_line

print_interrupt_in_one_line()

from llmtrack.cli.commands import main as main  # noqa: E402 - the imports take a while, and Ctrl-C may come meanwhile
