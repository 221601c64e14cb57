"""Run the command as `python -m llmtrack`."""

from llmtrack.cli import main

main(prog_name="llmtrack")
