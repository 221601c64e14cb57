"""Update the findings shown in README.md from a demo's log: make demo | tee demo.log, then python -m docs.demo demo.log."""

from __future__ import annotations

from pathlib import Path

import click

from llmtrack.report.page.reports import FOUND

README = Path(__file__).parents[1] / "README.md"
BEFORE, AFTER = "ends with its findings, such as\n\n```text\n", "```\n"
MAX_LINES = 3


def findings(log: str) -> str:
    """Return the first lines of a demo's findings.

    Raises:
        ValueError: it did not finish.
    """
    _, heading, end = log.replace("\r\n", "\n").rpartition(f"{FOUND}\n")
    lines = [line for line in end.partition("\n\n")[0].splitlines() if line.startswith("- ")]
    if not heading or not lines:
        raise ValueError("not a log of a finished demo")
    return "".join(f"{line}\n" for line in lines[:MAX_LINES])


def with_findings(readme: str, lines: str) -> str:
    """Replace the findings in README's text."""
    head, _, rest = readme.partition(BEFORE)
    return head + BEFORE + lines + AFTER + rest.partition(AFTER)[2]


@click.command()
@click.argument("log", type=click.Path(exists=True, path_type=Path))
def main(log: Path) -> None:
    """Update README.md from the log of a demo, which was written to a file or pipe: a terminal wraps its lines."""
    text = README.read_text(encoding="utf-8")
    README.write_text(with_findings(text, findings(log.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
