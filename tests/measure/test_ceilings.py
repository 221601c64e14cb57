"""Ceilings of a device: how they are measured, and cached by what they depend on."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from llmtrack.engines.scripted import FakeClock
from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import MIB
from llmtrack.measure import ceilings, disturbances
from llmtrack.measure.ceilings import beyond_cache, buffer_bytes, last_caches_bytes
from llmtrack.measure.disturbances import CpuReading


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(ceilings, "folder", lambda: tmp_path / "ceilings")
    monkeypatch.setattr(ceilings, "_TRIED", {})
    monkeypatch.setattr(ceilings, "_DOUBTS", {})


def counting(*values):
    remaining = list(values)
    return lambda: remaining.pop(0)


def test_a_ceiling_is_measured_once_per_name_and_device(monkeypatch):
    measure = counting(1.0, 2.0, 3.0)
    assert [ceilings.cached_ceiling("cpu", "copies", measure) for _ in range(3)] == [1.0, 1.0, 1.0]
    assert ceilings.cached_ceiling("cpu", "products", measure) == 2.0
    monkeypatch.setattr(ceilings, "device_id", lambda device: "another")
    assert ceilings.cached_ceiling("cpu", "copies", measure) == 3.0


def test_ceilings_of_a_cpu_depend_on_its_threads(monkeypatch):
    before = ceilings.device_id("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert ceilings.device_id("cpu") != before


def test_an_expired_ceiling_is_remeasured(monkeypatch):
    measure = counting(1.0, 2.0)
    ceilings.cached_ceiling("cpu", "copies", measure)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + ceilings.LIFETIME_S + 1)
    assert ceilings.cached_ceiling("cpu", "copies", measure) == 2.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"value": 5}', '{"value": -1, "measured_at": 0}', "null"])
def test_a_damaged_file_is_ignored(content):
    ceilings.cached_ceiling("cpu", "copies", counting(1.0))
    (file,) = ceilings.folder().iterdir()
    file.write_text(content)
    assert ceilings.cached_ceiling("cpu", "copies", counting(2.0)) == 2.0
    assert json.loads(file.read_text())["value"] == 2.0


@pytest.fixture
def busy(monkeypatch):
    """Set the shares of CPU time that other programs take during successive measurements."""

    def set_shares(*shares):
        readings = []
        for share in shares:
            readings += [CpuReading(0, 0, 0), CpuReading(10 + 100 * share, 10, 100)]
        monkeypatch.setattr(disturbances, "BUSY_SHARE", 0.1)
        monkeypatch.setattr(disturbances, "read_cpu", counting(*readings))

    return set_shares


def test_a_ceiling_of_a_busy_machine_is_doubtful_and_not_cached(busy):
    busy(0.4, 0.05)
    assert ceilings.cached_ceiling("cpu", "copy bandwidth", counting(1.0)) == 1.0
    assert (
        ceilings.doubts("cpu", "float32")
        == "copy bandwidth: other programs took 40% of the CPU time when it was measured"
    )
    assert ceilings.doubts("cuda:0", "float32") == ""
    # On a quiet machine.
    assert ceilings.cached_ceiling("cpu", "copy bandwidth", counting(2.0)) == 2.0
    assert ceilings.cached_ceiling("cpu", "copy bandwidth", counting()) == 2.0
    assert ceilings.doubts("cpu", "float32") == ""


def test_a_doubtful_rate_makes_no_other_arithmetic_doubtful(busy, monkeypatch):
    busy(0.4)
    monkeypatch.setattr(ceilings, "measure_rate", lambda device, arithmetic: 1.0)
    assert ceilings.matrix_rate("cpu", "bfloat16") == 1.0
    assert ceilings.doubts("cpu", "bfloat16").startswith("matrix products in bfloat16, ")
    assert ceilings.doubts("cpu", "float32") == ""


@pytest.mark.parametrize(("others", "values", "expected"), [
    # Measured again until the machine is quiet, and three times at most: the best of them.
    ((0.4, 0.0), (5.0, 4.0), [5.0, 4.0, 4.0, 4.0]), ((0.4, 0.4, 0.4), (3.0, 5.0, 4.0), [3.0, 5.0, 5.0, 5.0]),
    ((0.0,), (4.0,), [4.0, 4.0, 4.0, 4.0]),
])  # fmt: skip
def test_a_doubtful_ceiling_is_measured_again(busy, monkeypatch, others, values, expected):
    busy(*others)
    measure = counting(*values)
    monkeypatch.setattr(ceilings, "measure_bandwidth", lambda device: measure())
    assert [ceilings.copy_bandwidth("cpu") for _ in range(4)] == expected
    assert bool(ceilings.doubts("cpu", "float32")) is (len(others) == 3)


def test_a_ceiling_stays_doubtful_if_it_cannot_be_measured_again(monkeypatch):
    monkeypatch.setattr(disturbances, "BUSY_SHARE", 0.1)
    monkeypatch.setattr(disturbances, "others_share", Mock(side_effect=[0.4, 0.0]))
    values = [5.0, ScenarioError("no memory", kind="out_of_memory"), 4.0]
    monkeypatch.setattr(ceilings, "measure_bandwidth", Mock(side_effect=values))
    assert ceilings.copy_bandwidth("cpu") == 5.0
    with pytest.raises(ScenarioError):
        ceilings.copy_bandwidth("cpu")
    assert ceilings.doubts("cpu", "float32") != ""
    assert ceilings.copy_bandwidth("cpu") == 4.0
    assert ceilings.doubts("cpu", "float32") == ""


@pytest.mark.parametrize(("measured", "expected", "in_doubt"), [(1.0, 2.0, False), (3.0, 3.0, True)])
def test_a_busy_machine_never_lowers_a_cached_ceiling(busy, monkeypatch, measured, expected, in_doubt):
    busy(0.0, 0.4)
    ceilings.cached_ceiling("cpu", "copy bandwidth", counting(2.0))
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + ceilings.LIFETIME_S + 1)
    assert ceilings.cached_ceiling("cpu", "copy bandwidth", counting(measured)) == expected
    assert bool(ceilings.doubts("cpu", "float32")) is in_doubt


def test_without_a_cache_folder_it_is_measured_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(ceilings, "folder", lambda: tmp_path / "file")
    assert [ceilings.cached_ceiling("cpu", "copies", measure) for measure in (counting(1.0), counting(2.0))] == [
        1.0,
        2.0,
    ]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8"])
def test_the_rate_is_measured_in_each_arithmetic(monkeypatch, name):
    monkeypatch.setattr(ceilings, "FIRST_SIDE", 32)
    monkeypatch.setattr(ceilings, "SIDE", 64)
    assert ceilings.measure_rate("cpu", name) > 0


def test_the_rate_is_that_of_the_largest_product(monkeypatch):
    # 512: 1 ms, 1024: 8 ms, 2048: 64 ms, which is enough: 2 x 2048^3 / 0.064.
    monkeypatch.setattr(ceilings, "free_memory", lambda device: 10_000 * MIB)
    monkeypatch.setattr(ceilings, "_product_seconds", lambda device, dtype, side: 0.001 * (side / 512) ** 3)
    assert ceilings.measure_rate("cpu", "float32") == pytest.approx(2 * 2048**3 / 0.064)


def test_the_rate_is_the_best_of_all_sizes(monkeypatch):
    """A kernel that does not block for the caches is slower at 1,024 than at 512: 20 ms, 320 ms, which is enough."""
    monkeypatch.setattr(ceilings, "free_memory", lambda device: 10_000 * MIB)
    monkeypatch.setattr(ceilings, "_product_seconds", lambda device, dtype, side: 0.020 * (side / 512) ** 4)
    assert ceilings.measure_rate("cpu", "bfloat16") == pytest.approx(2 * 512**3 / 0.020)


@pytest.mark.parametrize(("seconds", "calls"), [
    # Nine times as slow as the other layout, which took 0.2 s: once. Nearly as fast: as often as that one.
    ((0.2, 1.8), [3, 1]), ((0.2, 0.3), [3, 3]), ((1.8, 0.2), [3, 3]), ((0.01, 0.09), [6, 4]),
])  # fmt: skip
def test_a_hopeless_layout_is_not_repeated_for_seconds(monkeypatch, seconds, calls):
    """A product of matrices in a layout that a CPU has no kernel for may take seconds."""
    clock, made = FakeClock(), [0, 0]

    def multiply(layout):
        made[layout] += 1
        clock.advance(seconds[layout])

    monkeypatch.setattr(ceilings.time, "perf_counter", clock)
    monkeypatch.setattr(ceilings, "_products", lambda *_: [partial(multiply, 0), partial(multiply, 1)])
    assert ceilings._product_seconds("cpu", "bfloat16", 512) == pytest.approx(min(seconds))
    assert made == calls


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_products_include_the_layout_of_a_linear_layer(monkeypatch, dtype):
    """A CPU without bfloat16 multiplies ten times faster with a transposed right factor: the rate must see that order."""
    orders = []
    for name in ("mm", "_int_mm"):
        monkeypatch.setattr(torch, name, lambda left, right, out=None: orders.append(right.is_contiguous()))
    for call in ceilings._products("cpu", dtype, 32):
        call()
    assert False in orders


def test_matrices_are_smaller_if_memory_is_short():
    assert ceilings.largest_side(100_000 * MIB, "cpu") == 4096
    assert ceilings.largest_side(100_000 * MIB, "cuda:0") == 8192
    assert ceilings.largest_side(96 * MIB, "cpu") == 1024  # 3 x 4 MiB in an eighth
    with pytest.raises(ScenarioError, match="too little memory"):
        ceilings.largest_side(20 * MIB, "cpu")


def test_an_unknown_arithmetic_has_no_rate():
    with pytest.raises(ScenarioError, match="no matrix product in int3"):
        ceilings.measure_rate("cpu", "int3")


def describe_caches(root: Path, *caches: tuple[int, str, str]) -> Path:
    """Write the sysfs description of four CPUs with an own first-level cache and shared ones: level, CPUs, size."""
    for cpu in range(4):
        first_level = (1, str(cpu), "48K")
        for index, (level, shared, size) in enumerate((first_level, *caches)):
            if str(cpu) not in shared:
                continue
            folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("caches", "total", "buffer"),
    [
        ([(2, "0,1", "1024K"), (3, "0,1,2,3", "8192K")], 8, 64),  # a laptop: 2 x 64 MiB instead of 2 x 256
        ([(3, "0,1", "16384K"), (3, "2,3", "16384K")], 32, 128),  # each pair of cores has its own
        ([(3, "0,1,2,3", "307200K")], 300, 256),  # as virtual machines report of their host
        ([(2, "0,1,2,3", "2048K")], 2, 64),  # no third level
    ],
)
def test_the_buffer_is_four_times_the_last_caches_and_at_most_256_mib(tmp_path, caches, total, buffer):
    assert last_caches_bytes(describe_caches(tmp_path, *caches)) == total * MIB
    assert beyond_cache(total * MIB) == buffer * MIB


def test_without_known_caches_the_buffer_is_the_largest(tmp_path):
    (tmp_path / "cpu0" / "cache" / "index0").mkdir(parents=True)  # an empty description
    assert last_caches_bytes(tmp_path) == 0
    assert beyond_cache(0) == 256 * MIB


def test_probe_buffers_shrink_with_the_free_memory():
    assert buffer_bytes(10_000 * MIB, 256 * MIB) == 256 * MIB
    assert buffer_bytes(800 * MIB, 256 * MIB) == 100 * MIB
    assert buffer_bytes(512 * MIB, 256 * MIB) == 64 * MIB
    with pytest.raises(ScenarioError, match="only 511 MiB are free"):
        buffer_bytes(511 * MIB, 256 * MIB)


def test_the_probe_retries_with_smaller_buffers(monkeypatch):
    requests = []

    def refuse(device, size):
        requests.append(size // MIB)
        if size > 100 * MIB:
            raise RuntimeError("can't allocate memory")
        return 7.0

    monkeypatch.setattr(ceilings, "free_memory", lambda device: 100_000 * MIB)
    monkeypatch.setattr(ceilings, "last_caches_bytes", lambda: 100 * MIB)
    monkeypatch.setattr(ceilings, "_copy_rate", refuse)
    assert ceilings.measure_bandwidth("cpu") == 7.0
    assert requests == [256, 128, 64]
    monkeypatch.setattr(ceilings, "_copy_rate", lambda device, size: refuse(device, 101 * MIB))
    with pytest.raises(ScenarioError, match="no memory for two buffers of 64 MiB"):
        ceilings.measure_bandwidth("cpu")
