"""The card of a torch device: CUDA hides and reorders cards, which nvidia-smi ignores."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import psutil
import pytest
import torch

from llmtrack.host import machine as system
from llmtrack.host.processes import WORKER, kill_tree
from llmtrack.measure import disturbances, gpus
from llmtrack.measure.disturbances import gpu_warning
from llmtrack.measure.gpus import Card, card_of, cards, other_pids, visible_cards
from llmtrack.worker import machine

UUIDS = ("GPU-aaaa-0", "GPU-aabb-1", "GPU-bbbb-2", "GPU-cccc-3")
ALIKE = tuple(Card(uuid, "A", "550") for uuid in UUIDS)
UNLIKE = (Card("GPU-aaaa-0", "old", "550"), Card("GPU-aabb-1", "new", "550"))
MIG = (Card("GPU-aaaa-0", "A", "550", ("MIG-1111", "MIG-2222")), Card("GPU-bbbb-2", "A", "550", ("MIG-3333",)))
BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
HOST, CONTAINER = "pid:[4026531836]", "pid:[4026532999]"
OWN, PARENT, NOBODY = "own", "parent", "nobody"


@pytest.mark.parametrize(("all_cards", "environ", "numbers"), [
    (ALIKE, {}, (0, 1, 2, 3)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "3"}, (3,)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": " 2, 0 "}, (2, 0)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": ""}, ()),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "-1"}, ()),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "1,7,2"}, (1,)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "1,-1,2"}, (1,)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "GPU-bbbb-2,GPU-aaaa-0"}, (2, 0)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "GPU-c"}, (3,)),
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "GPU-aa"}, ()),  # ambiguous
    (ALIKE, {"CUDA_VISIBLE_DEVICES": "GPU-gone,1"}, ()),
    (UNLIKE, {}, ()),  # by speed, which the driver does not report
    (UNLIKE, BUS, (0, 1)),
    (UNLIKE, BUS | {"CUDA_VISIBLE_DEVICES": "1"}, (1,)),
    (UNLIKE, {"CUDA_VISIBLE_DEVICES": "1"}, ()),
    (UNLIKE, {"CUDA_VISIBLE_DEVICES": "GPU-aabb-1"}, (1,)),
    (MIG, {"CUDA_VISIBLE_DEVICES": "MIG-3333"}, (1,)),
    (MIG, {"CUDA_VISIBLE_DEVICES": "MIG-2222"}, (0,)),
    (MIG, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-bbbb-2/3/0"}, (1,)),
    (MIG, {"CUDA_VISIBLE_DEVICES": "MIG-"}, ()),
    ((), {"CUDA_VISIBLE_DEVICES": "0"}, ()),
    ((), {}, ()),
])  # fmt: skip
def test_visible_cards(all_cards, environ, numbers):
    assert visible_cards(environ, all_cards) == tuple(all_cards[number] for number in numbers)


# Through a shell: a path with a space cannot follow `#!`.
FAKE = """#!/bin/sh
exec "{python}" - "$@" <<'END'
import sys
cards = {uuids!r}
options = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
if "-L" in options:
    for number, uuid in enumerate(cards):
        print(f"GPU {{number}}: NVIDIA A (UUID: {{uuid}})")
        if number == 1:
            print("  MIG 1g.10gb     Device  0: (UUID: MIG-1111)")
elif "--query-gpu" in options:
    for uuid in cards:
        print(f"{{uuid}}, NVIDIA A, 550.1")
elif options.get("--id") == "GPU-cccc-3":
    print("{other}\\n[N/A]")
END
"""


@pytest.fixture
def four_cards(tmp_path, monkeypatch):
    """An nvidia-smi that knows four cards; another program uses the last."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(FAKE.format(python=sys.executable, uuids=UUIDS, other=os.getppid()))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(disturbances, "card_of", card_of)
    monkeypatch.setattr(disturbances, "torch_uuid", lambda device: None)


@pytest.mark.slow(1)
@pytest.mark.usefixtures("four_cards")
def test_the_warning_is_about_the_card_in_use(monkeypatch):
    monkeypatch.setattr(system, "pid_namespace", lambda: HOST)
    assert [card.uuid for card in cards()] == list(UUIDS)
    assert cards()[1].instances == ("MIG-1111",)
    assert gpu_warning("cpu") == ()
    assert gpu_warning("cuda:0") == ()
    (warning,) = gpu_warning("cuda:3")
    assert "1 other process(es) use the GPU NVIDIA A (GPU-cccc-3): stop them" in warning
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpu_warning("cuda:0") == gpu_warning("cuda") == (warning,)
    assert gpu_warning("cuda:3") == (), "that device is hidden"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-cccc")
    assert gpu_warning("cuda:0") == (warning,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_warning("cuda:0") == ()


@pytest.mark.usefixtures("four_cards")
def test_torchs_uuid_takes_precedence(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert card_of("cuda:0", "CCCC-3").uuid == "GPU-cccc-3"
    assert card_of("cuda:0", "dddd-4") is None


def test_without_nvidia_smi_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cards() == ()
    assert gpu_warning("cuda:0") == ()


@pytest.mark.usefixtures("four_cards")
def test_the_machine_is_described_by_its_visible_cards(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"name of {device}")
    monkeypatch.setattr(machine, "torch_uuid", lambda device: None)
    both = ["cuda:0", "cuda:1"]
    assert machine._gpu_names(both) == {"gpu": "name of cuda:0, name of cuda:1", "gpu_count": "2"}
    assert machine._gpu_cards(both) == {"gpu_uuids": "GPU-cccc-3,GPU-aabb-1", "gpu_driver": "550.1"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A")
    assert machine._gpu_names(both) == {"gpu": "NVIDIA A", "gpu_count": "2"}
    monkeypatch.setattr(gpus, "cards", lambda: ())
    assert machine._gpu_cards(both[:1]) == {"gpu_uuids": "unknown", "gpu_driver": "unknown"}


@pytest.mark.parametrize(("answer", "expected"), [
    ([], None),
    ([["[N/A]"]], None),
    ([["8.9"], ["12.0"], ["9.0"]], (12, 0)),
])  # fmt: skip
def test_the_highest_capability_counts(monkeypatch, answer, expected):
    monkeypatch.setattr(gpus, "query_driver", lambda *options: answer)
    assert gpus.capability() == expected


@pytest.mark.parametrize(("namespace", "listed", "others"), [
    (HOST, {OWN}, set()),
    (HOST, {OWN, PARENT}, {PARENT}),
    (HOST, {OWN, NOBODY}, {NOBODY}),  # it has just ended
    (HOST, {NOBODY}, set()),  # possibly this process under another number
    (HOST, {PARENT, NOBODY}, {PARENT}),
    ("", {NOBODY}, set()),
    (CONTAINER, {NOBODY}, set()),
    (CONTAINER, {PARENT}, set()),  # another process of the machine may have this number
    (CONTAINER, {OWN, PARENT}, {PARENT}),  # the driver reports the container's numbers
    (CONTAINER, set(), set()),
])  # fmt: skip
def test_pids_are_compared_within_one_namespace_only(monkeypatch, namespace, listed, others):
    # A test may run in a fork of the process that read this file.
    pids = {OWN: os.getpid(), PARENT: os.getppid(), NOBODY: 2**22 + 1}
    monkeypatch.setattr(system, "pid_namespace", lambda: namespace)
    assert other_pids(pids[name] for name in listed) == {pids[name] for name in others}


def test_workers_of_the_same_study_are_not_other_processes(monkeypatch):
    """Two processes of one parent: a worker, with what it started, and a stranger."""
    wait = "import subprocess, sys, time; print('up', flush=True); time.sleep(600)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])"
    commands = {"worker": [sys.executable, "-c", start, WORKER, "1"], "stranger": [sys.executable, "-c", wait]}
    started = {name: subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for name, command in commands.items()}
    try:
        assert [process.stdout.readline() for process in started.values()] == ["up\n", "up\n"]
        (rank,) = psutil.Process(started["worker"].pid).children()
        monkeypatch.setattr(os, "getppid", os.getpid)
        monkeypatch.setattr(system, "pid_namespace", lambda: HOST)
        monkeypatch.setattr(os, "getpid", lambda: 1)  # act as a worker; this process is the study
        assert other_pids([1, rank.pid, *(process.pid for process in started.values())]) == {started["stranger"].pid}
    finally:
        for process in started.values():
            kill_tree(process.pid)
            process.wait()
