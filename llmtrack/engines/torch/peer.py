"""A process that holds a shard of a model: `python -m llmtrack.engines.torch.peer RANK COUNT PORT KIND`, started by
rank 0.
"""

from __future__ import annotations

import sys

from llmtrack.host.transformers_compat import import_transformers


def main() -> None:
    """Follow rank 0."""
    # First: further imports of transformers would keep rank 0 waiting.
    import_transformers()
    from llmtrack.engines.torch.parallel.tensor_parallel import follow
    from llmtrack.engines.torch.pytorch import load_shard_of

    rank, count, port, kind = sys.argv[1:]
    follow(int(rank), int(count), int(port), kind, load_shard_of)


if __name__ == "__main__":
    main()
