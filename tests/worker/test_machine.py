"""CPU limits are part of a machine's identity; read from written files."""

from __future__ import annotations

import os

import pytest

from llmtrack.tracking.environment import environment_id
from llmtrack.worker import machine
from llmtrack.worker.machine import cpu_affinity, cpu_quota, describe, ranges

GROUPS = {
    "version 2": ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
    "version 2, of a group above": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
        },
        0.5,
    ),
    "version 2, of the mount that a container sees": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
        2.0,
    ),
    "version 2, a path of the host": (
        {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/cpu.max": "25000 50000\n"},
        0.5,
    ),
    "version 2, no limit": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
    "version 1": (
        {
            "proc/self/cgroup": "5:memory:/d\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/d\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "version 1, of the mount, under its short name": (
        {
            "proc/self/cgroup": "4:cpuacct,cpu:/docker/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "20000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        0.2,
    ),
    "version 1, no limit": (
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "both": (
        {
            "proc/self/cgroup": "4:cpu:/x\n0::/x\n",
            "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/x/cpu.max": "300000 100000\n",
        },
        1.0,
    ),
    "cpuset alone": ({"proc/self/cgroup": "4:cpuset:/x\n", "sys/fs/cgroup/cpuset/x/cpuset.cpus": "0\n"}, None),
    "torn": ({"proc/self/cgroup": "nonsense\n0::/a\n", "sys/fs/cgroup/a/cpu.max": "\n"}, None),
    "none": ({}, None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_smallest_quota_counts(tmp_path, name):
    files, expected = GROUPS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert cpu_quota(tmp_path) == expected


def test_affinity_is_reported_if_not_all_cpus_are_usable(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 7}, raising=False)
    assert cpu_affinity() == "0-2,5,7"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cpu_affinity() == ""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpu_affinity() == ""


def test_ranges():
    assert [ranges(numbers) for numbers in ([], [3], [3, 4], [0, 2, 3, 4, 9])] == ["", "3", "3-4", "0,2-4,9"]


def test_quota_and_affinity_change_the_environment_id(monkeypatch):
    ids = []
    for quota, affinity in ((None, ""), (2.0, ""), (1.5, ""), (None, "0-1"), (None, "2-3")):
        monkeypatch.setattr(machine, "cpu_quota", lambda quota=quota: quota)
        monkeypatch.setattr(machine, "cpu_affinity", lambda affinity=affinity: affinity)
        ids.append(environment_id(describe()))
    assert len(set(ids)) == 5
