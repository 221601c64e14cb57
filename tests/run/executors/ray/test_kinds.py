"""Grouping nodes by hardware."""

from __future__ import annotations

import pytest

from llmtrack.errors import UsageError
from llmtrack.run.executors.ray.kinds import Node, kinds_of, needs_of, read_resources, split_by_version

FACTS = {"machine": "x86_64", "cpu": "A", "cpu_cores": "8", "cpu_available": "16", "memory_gib": "62.7"}
VERSIONS = {"python": "3.11", "llmtrack": "0.1.0 (abc)", "torch": "2.13.0", "transformers": "5.0"}


def node(name, cpus=16.0, facts=FACTS, versions=VERSIONS, **resources):
    return Node(f"id-{name}", name, {"CPU": cpus, "memory": 1e9, **resources}, facts, versions)


def names(kinds):
    return [[node.name for node in kind.nodes] for kind in kinds]


def test_a_whole_node_means_all_cpus_and_gpus():
    assert needs_of(node("a", GPU=4.0), None) == {"CPU": 16.0, "GPU": 4.0}
    assert needs_of(node("a"), None) == {"CPU": 16.0}
    assert needs_of(node("head", cpus=0.0), None) is None


def test_amounts_are_requested_where_a_node_has_them():
    resources = read_resources("CPU=4, GPU=1,bench=0.5")
    assert resources == {"CPU": 4.0, "GPU": 1.0, "bench": 0.5}
    assert needs_of(node("a", GPU=2.0, bench=1.0), resources) == resources
    assert needs_of(node("a", GPU=2.0), resources) is None
    assert read_resources("node") is None


@pytest.mark.parametrize("text", ["CPU", "CPU=", "CPU=x", "CPU=0", "CPU=-1", "=1", "GPU=inf", "GPU=nan", "CPU=1,,"])
def test_invalid_resources_are_refused(text):
    with pytest.raises(UsageError, match=r"resources .* are not understood: use node"):
        read_resources(text)


@pytest.mark.parametrize(
    ("fact", "value"),
    [("cpu", "B"), ("cpu_cores", "4"), ("memory_gib", "31.2"), ("gpus", "1 x H100"), ("node_kind", "cooled")],
)
def test_nodes_with_equal_hardware_facts_are_one_kind(fact, value):
    other = node("c", facts={**FACTS, fact: value})
    assert names(kinds_of([other, node("b"), node("a")], None)) == [["a", "b"], ["c"]]
    assert names(kinds_of([node("d", facts={**FACTS, "os": "other"}), node("a")], None)) == [["a", "d"]]


def test_nodes_with_different_resources_are_different_kinds():
    assert names(kinds_of([node("a", cpus=2.0), node("b", cpus=1.0)], None)) == [["a"], ["b"]]
    assert names(kinds_of([node("a", cpus=2.0), node("b", cpus=1.0)], {"CPU": 1.0})) == [["a", "b"]]


def test_a_kind_is_named_by_its_hardware():
    (kind,) = kinds_of([node("a", GPU=2.0, facts={**FACTS, "gpus": "2 x H100", "node_kind": "cooled"})], None)
    assert kind.name == "cooled, 2 x H100, A, 16 CPUs, 62.7 GiB"


def test_a_cluster_without_the_requested_resources_is_refused():
    with pytest.raises(UsageError, match="none of the 2 nodes of the cluster has GPU=1 to give"):
        kinds_of([node("a"), node("b")], {"GPU": 1.0})


@pytest.mark.parametrize(
    ("changed", "versions"),
    [
        ({"torch": "2.9.0"}, "torch 2.9.0 (here 2.13.0)"),
        ({"llmtrack": "0.1.0 (xyz)"}, "llmtrack 0.1.0 (xyz) (here 0.1.0 (abc))"),
        ({"transformers": "", "python": "3.12"}, "python 3.12 (here 3.11), transformers missing (here 5.0)"),
    ],
)
def test_a_node_of_other_versions_is_excluded_in_one_line(changed, versions):
    fit, lines = split_by_version([node("a"), node("b", versions={**VERSIONS, **changed})], VERSIONS)
    assert [usable.name for usable in fit] == ["a"]
    assert lines == [f"node b measures nothing: it has {versions}; install the same there"]
