"""How large the buffers are whose copy tells the bandwidth: beyond the caches, and no larger than that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrack.host.formatting import MIB
from llmtrack.measure.bandwidth import beyond_cache, last_caches_bytes


def described(root: Path, *caches: tuple[int, str, str]) -> Path:
    """Make the description of CPUs that each have the same small cache and share the others: level, CPUs, size."""
    for cpu in range(4):
        own = (1, str(cpu), "48K")
        for index, (level, shared, size) in enumerate((own, *caches)):
            if str(cpu) not in shared:
                continue
            folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("caches", "held", "buffer"),
    [
        ([(2, "0,1", "1024K"), (3, "0,1,2,3", "8192K")], 8, 64),  # a laptop: 2 x 64 MiB instead of 2 x 256
        ([(3, "0,1", "16384K"), (3, "2,3", "16384K")], 32, 128),  # each pair of cores has its own
        ([(3, "0,1,2,3", "307200K")], 300, 256),  # as virtual machines tell of their host's
        ([(2, "0,1,2,3", "2048K")], 2, 64),  # no third level
    ],
)
def test_a_buffer_is_four_times_the_last_caches_and_256_mib_at_most(tmp_path, caches, held, buffer):
    assert last_caches_bytes(described(tmp_path, *caches)) == held * MIB
    assert beyond_cache(held * MIB) == buffer * MIB


def test_where_the_caches_are_not_known_the_buffer_is_the_largest(tmp_path):
    (tmp_path / "cpu0" / "cache" / "index0").mkdir(parents=True)  # a description without a word
    assert last_caches_bytes(tmp_path) == 0
    assert beyond_cache(0) == 256 * MIB
