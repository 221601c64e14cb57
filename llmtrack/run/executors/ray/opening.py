"""Open a Ray cluster: one executor per requested kind of node."""

from __future__ import annotations

from llmtrack.errors import UsageError
from llmtrack.host.formatting import plural
from llmtrack.run.executors.ray import node
from llmtrack.run.executors.ray.cluster import Cluster
from llmtrack.run.executors.ray.executor import RayExecutor
from llmtrack.run.executors.ray.kinds import kinds_of, read_resources, split_by_version
from llmtrack.run.executors.timeouts import Patience
from llmtrack.tracking.write.spool import Notify, to_stderr


def open_cluster(
    address: str, nodes: str, resources: str, patience: Patience, notify: Notify = to_stderr
) -> list[RayExecutor]:
    """Return one executor per kind of node to measure on; closing one closes all.

    Args:
        address: see `Cluster`.
        nodes: `same` (the most common kind) or `each` (every kind).
        resources: see `kinds.read_resources`.
        patience: timeouts of a silent worker.
        notify: receives lines about the nodes used, and those not used with the reason.

    Raises:
        LlmtrackError: there is no cluster, or no usable node.
    """
    requested = read_resources(resources)
    cluster = Cluster(address)
    try:
        answering, silent = cluster.nodes()
        usable, differing = split_by_version(answering, node.versions())
        unusable = [*silent, *differing]
        for line in unusable:
            notify(line)
        if not usable:
            raise UsageError(f"no node of the cluster can measure: {'; '.join(unusable)}")
        kinds = kinds_of(usable, requested)
        if nodes == "same":
            for other in kinds[1:]:
                notify(f"not measured on: {other.name} ({plural(len(other.nodes), 'node')}); use nodes=each")
            kinds = kinds[:1]
        for kind in kinds:
            notify(f"measures on {plural(len(kind.nodes), 'node')}: {kind.name}")
    except BaseException:
        cluster.close()
        raise
    # A measurement without Ray CPUs is assumed to have the machine to itself by other means, and uses all threads.
    alone = requested is None or "CPU" not in requested
    executors = [RayExecutor(cluster, kind, patience, alone) for kind in kinds]
    executors[0].begin()
    return executors
