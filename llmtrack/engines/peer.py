"""A process that holds a share of a model: `python -m llmtrack.engines.peer RANK COUNT PORT KIND`, started by rank 0."""

from __future__ import annotations

import sys

from llmtrack.compat import import_transformers


def main() -> None:
    """Follow rank 0."""
    # First: what transformers imports beyond that would keep rank 0 waiting.
    import_transformers()
    from llmtrack.engines.pytorch import load_share_of
    from llmtrack.engines.ranks import follow

    rank, count, port, kind = sys.argv[1:]
    follow(int(rank), int(count), int(port), kind, load_share_of)


if __name__ == "__main__":
    main()
