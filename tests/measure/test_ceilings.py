"""What a device can do is measured once, kept by what it depends on, and believed for a while."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import MIB
from llmtrack.measure import ceilings, disturbances
from llmtrack.measure.ceilings import beyond_cache, last_caches_bytes
from llmtrack.measure.disturbances import CpuReading


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(ceilings, "folder", lambda: tmp_path / "ceilings")
    monkeypatch.setattr(ceilings, "_DOUBTS", {})


def counting(*values):
    left = list(values)
    return lambda: left.pop(0)


def test_a_ceiling_is_measured_once_for_each_name_and_device(monkeypatch):
    measure = counting(1.0, 2.0, 3.0)
    assert [ceilings.cached_ceiling("cpu", "copies", measure) for _ in range(3)] == [1.0, 1.0, 1.0]
    assert ceilings.cached_ceiling("cpu", "products", measure) == 2.0
    monkeypatch.setattr(ceilings, "device_id", lambda device: "another")
    assert ceilings.cached_ceiling("cpu", "copies", measure) == 3.0


def test_threads_are_part_of_what_a_cpu_can_do(monkeypatch):
    one = ceilings.device_id("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert ceilings.device_id("cpu") != one


def test_an_old_one_is_measured_anew(monkeypatch):
    measure = counting(1.0, 2.0)
    ceilings.cached_ceiling("cpu", "copies", measure)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + ceilings.LIFETIME_S + 1)
    assert ceilings.cached_ceiling("cpu", "copies", measure) == 2.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"value": 5}', '{"value": -1, "measured_at": 0}', "null"])
def test_a_damaged_file_is_no_ceiling(content):
    ceilings.cached_ceiling("cpu", "copies", counting(1.0))
    (file,) = ceilings.folder().iterdir()
    file.write_text(content)
    assert ceilings.cached_ceiling("cpu", "copies", counting(2.0)) == 2.0
    assert json.loads(file.read_text())["value"] == 2.0


@pytest.fixture
def busy(monkeypatch):
    """Let other programs take such shares of the CPU time while a ceiling is measured, one after the other."""

    def set_shares(*shares):
        readings = []
        for share in shares:
            readings += [CpuReading(0, 0, 0), CpuReading(10 + 100 * share, 10, 100)]
        monkeypatch.setattr(disturbances, "BUSY_SHARE", 0.1)
        monkeypatch.setattr(disturbances, "read_cpu", counting(*readings))

    return set_shares


def test_what_is_measured_on_a_busy_machine_is_in_doubt_and_not_kept(busy):
    busy(0.4, 0.05)
    assert ceilings.cached_ceiling("cpu", "copies", counting(1.0)) == 1.0
    assert ceilings.doubts("cpu") == "copies: other programs took 40% of the CPU time when it was measured"
    assert ceilings.doubts("cuda:0") == ""
    # Of another process, on a quiet machine.
    ceilings._DOUBTS.clear()
    assert ceilings.cached_ceiling("cpu", "copies", counting(2.0)) == 2.0
    assert ceilings.cached_ceiling("cpu", "copies", counting()) == 2.0
    assert ceilings.doubts("cpu") == ""


@pytest.mark.parametrize(("measured", "found", "in_doubt"), [(1.0, 2.0, False), (3.0, 3.0, True)])
def test_a_busy_machine_never_tells_less_than_was_kept_however_old(busy, monkeypatch, measured, found, in_doubt):
    busy(0.0, 0.4)
    ceilings.cached_ceiling("cpu", "copies", counting(2.0))
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + ceilings.LIFETIME_S + 1)
    assert ceilings.cached_ceiling("cpu", "copies", counting(measured)) == found
    assert bool(ceilings.doubts("cpu")) is in_doubt


def test_without_a_place_to_keep_it_it_is_measured_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(ceilings, "folder", lambda: tmp_path / "file")
    assert [ceilings.cached_ceiling("cpu", "copies", measure) for measure in (counting(1.0), counting(2.0))] == [
        1.0,
        2.0,
    ]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8"])
def test_a_rate_of_matrix_products_is_measured_in_each_arithmetic(monkeypatch, name):
    monkeypatch.setattr(ceilings, "FIRST_SIDE", 32)
    monkeypatch.setattr(ceilings, "SIDE", 64)
    assert ceilings.measure_rate("cpu", name) > 0


def test_the_rate_is_that_of_the_largest_product_that_was_made(monkeypatch):
    # 512: 1 ms, 1024: 8 ms, 2048: 64 ms, which is enough: 2 x 2048^3 / 0.064.
    monkeypatch.setattr(ceilings, "free_memory", lambda device: 10_000 * MIB)
    monkeypatch.setattr(ceilings, "_product_seconds", lambda device, dtype, side: 0.001 * (side / 512) ** 3)
    assert ceilings.measure_rate("cpu", "float32") == pytest.approx(2 * 2048**3 / 0.064)


def test_the_rate_is_the_best_of_all_sizes(monkeypatch):
    """A kernel that does not block for the caches is slower at 1,024 than at 512: 20 ms, 320 ms, which is enough."""
    monkeypatch.setattr(ceilings, "free_memory", lambda device: 10_000 * MIB)
    monkeypatch.setattr(ceilings, "_product_seconds", lambda device, dtype, side: 0.020 * (side / 512) ** 4)
    assert ceilings.measure_rate("cpu", "bfloat16") == pytest.approx(2 * 512**3 / 0.020)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_products_multiply_as_a_linear_layer_does(monkeypatch, dtype):
    """A CPU without bfloat16 multiplies ten times faster with a transposed right factor: the rate must see that order."""
    orders = []
    for name in ("mm", "_int_mm"):
        monkeypatch.setattr(torch, name, lambda left, right, out=None: orders.append(right.is_contiguous()))
    for act in ceilings._products("cpu", dtype, 32):
        act()
    assert False in orders


def test_matrices_are_smaller_where_memory_is_short():
    assert ceilings.largest_side(100_000 * MIB, "cpu") == 4096
    assert ceilings.largest_side(100_000 * MIB, "cuda:0") == 8192
    assert ceilings.largest_side(96 * MIB, "cpu") == 1024  # 3 x 4 MiB in an eighth
    with pytest.raises(ScenarioError, match="too little memory"):
        ceilings.largest_side(20 * MIB, "cpu")


def test_an_arithmetic_that_is_not_known_has_no_rate():
    with pytest.raises(ScenarioError, match="no matrix product in int3"):
        ceilings.measure_rate("cpu", "int3")


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
