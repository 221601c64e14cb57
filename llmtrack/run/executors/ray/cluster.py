"""The driver's connection to a Ray cluster: nodes, tasks, and messages from the tasks, in sending order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmtrack.errors import LlmtrackError, MissingDependencyError, UsageError, in_words
from llmtrack.host.formatting import truncate
from llmtrack.host.packages import install_command, installed_version
from llmtrack.host.signals import signal_handlers_restored
from llmtrack.run.executors.ray import node
from llmtrack.run.executors.ray.files import awaited
from llmtrack.run.executors.ray.kinds import KIND_LABEL, Node

PROBE_SECONDS = 120.0
"""Timeout for a node to describe itself, including the start of a Python process by Ray."""
_ANSWER_SECONDS = 10.0
_TAKE_SECONDS = 30.0
_END_SECONDS = 1.0
_MOST_TEXT = 500
_NODE = "ray.io/node-id"
Letter = tuple[str, dict[str, Any]]


class LostAnswerError(LlmtrackError):
    """The node or process that was to answer is lost; another one may answer."""


@dataclass
class RayTask:
    """A task submitted to Ray.

    Attributes:
        key: address of its messages.
        letters: messages received so far; `{"lost": reason, "final": ...}` if it ended without reporting.
    """

    key: str
    letters: queue.SimpleQueue[dict[str, Any]]
    ref: Any = None


class Cluster:
    """A connection to a cluster; one at a time per process.

    Args:
        address: `auto` (the cluster this machine belongs to), `local` (a temporary one on this machine), `HOST:PORT` or
            `ray://HOST:PORT`.

    Raises:
        MissingDependencyError: Ray is not installed.
        UsageError: there is no cluster at the address, or its Ray or Python version differs.
    """

    def __init__(self, address: str) -> None:
        if not installed_version("ray"):
            raise MissingDependencyError(f"executor=ray needs Ray, which is not installed: {install_command('ray')}")
        # For a cluster started here: workers at normal priority.
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray

        self._ray = ray
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            options["include_dashboard"] = False
        try:
            with signal_handlers_restored():  # Ray's SIGTERM handler would end the driver before it tracks its results
                _check_reachable(address)
                ray.init(address=address, **options)
        except Exception as error:
            raise UsageError(f"no Ray cluster can be used at address={address}: {_connection_error(error)}") from error
        self._boxes = Boxes()
        self._closed = threading.Event()
        # On the driver's node, so that it is only lost with the driver.
        node_id = ray.get_runtime_context().get_node_id()
        self._post = self._remote(Post, num_cpus=0, label_selector={_NODE: node_id}).remote()
        self._delivery = threading.Thread(target=self._deliver, name="llmtrack-post", daemon=True)
        self._delivery.start()

    def nodes(self) -> tuple[list[Node], list[str]]:
        """Return the nodes that answer, described, and a line for each that does not."""
        alive = self._alive()
        probes = {info["NodeID"]: self.call(node.probe, {}, [info["NodeID"]]) for info in alive}
        refs = list(probes.values())
        self._ray.wait(refs, num_returns=len(refs), timeout=PROBE_SECONDS)
        nodes, silent = [], []
        for info in alive:
            try:
                nodes.append(_node(info, self._ray.get(probes[info["NodeID"]], timeout=0)))
            except Exception as error:  # it just died, or llmtrack is not installed there
                name = f"{info['NodeManagerHostname']} ({info['NodeManagerAddress']}, {info['NodeID'][:6]})"
                is_late = isinstance(error, self._ray.exceptions.GetTimeoutError)
                reason = f"it did not answer within {PROBE_SECONDS:g} s" if is_late else _first_line(error)
                silent.append(f"node {name} measures nothing: {reason}")
        return nodes, silent

    def alive(self) -> set[str]:
        """Return the ids of the live nodes."""
        return {info["NodeID"] for info in self._alive()}

    def call(self, function: Callable[..., Any], needs: Mapping[str, float], nodes: Sequence[str], *args: Any) -> Any:
        """Call a function on one of several nodes with the given resources; return Ray's object reference."""
        rest = dict(needs)
        return (
            self._remote(
                function,
                num_cpus=rest.pop("CPU", 0),
                num_gpus=rest.pop("GPU", 0),
                resources=rest,
                # Two tasks at once would wait for the same node otherwise, while another is free.
                scheduling_strategy="SPREAD",
                label_selector={_NODE: f"in({','.join(nodes)})"},
                max_retries=0,
            )
        ).remote(*args)

    def answer(self, ref: Any) -> Any:
        """Wait for a result.

        Raises:
            LostAnswerError: there will be no result.
            LlmtrackError: raised by the function.
        """
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, LlmtrackError) else LlmtrackError(_first_line(error)) from error
        except self._ray.exceptions.RayError as error:
            raise LostAnswerError(_first_line(error)) from error

    def start(self, needs: Mapping[str, float], nodes: Sequence[str], *args: Any) -> RayTask:
        """Start measuring scenarios on one of several nodes (see `node.measure`)."""
        key = secrets.token_hex(8)
        task = RayTask(key, self._boxes.open(key))
        task.ref = self.call(_measure, needs, nodes, self._post, key, *args)
        task.ref.future().add_done_callback(partial(self._on_ended, key))
        return task

    def send(self, content: Any) -> Any:
        """Put an object into Ray's store for tasks; return its reference."""
        return self._ray.put(content)

    def interrupt(self, task: RayTask) -> None:
        """Ask a task to save its state and end."""
        with contextlib.suppress(Exception):
            self._ray.cancel(task.ref)

    def end(self, task: RayTask) -> None:
        """Close a task's mailbox, and force the task to end if necessary."""
        self._boxes.close(task.key)
        with contextlib.suppress(Exception):
            # Ray 2.60 aborts this process if a task is cancelled while its completion message is in flight.
            ended, _ = self._ray.wait([task.ref], timeout=_END_SECONDS)
            if not ended:
                self._ray.cancel(task.ref, force=True)

    def close(self) -> None:
        """Disconnect; Ray ends what still runs for this driver."""
        if self._closed.is_set():
            return
        self._closed.set()
        # A thread still waiting for Ray at shutdown would crash.
        with contextlib.suppress(Exception):
            self._post.put.remote("", {})
        self._delivery.join(_TAKE_SECONDS)
        self._ray.shutdown()

    def _remote(self, target: Any, **options: Any) -> Any:
        return self._ray.remote(**options)(target)

    def _alive(self) -> list[dict[str, Any]]:
        return [info for info in self._ray.nodes() if info["Alive"]]

    def _on_ended(self, key: str, future: Any) -> None:
        """Post a message for a task that ended without one; it arrives after the task's own."""
        error = future.exception()
        if error is not None and not self._closed.is_set():
            with contextlib.suppress(Exception):
                self._post.put.remote(key, self._loss(error))

    def _loss(self, error: BaseException) -> dict[str, Any]:
        exceptions = self._ray.exceptions
        memory = isinstance(error, exceptions.OutOfMemoryError)
        if memory:
            reason = "Ray ended it, since the node's memory was used up: use a smaller model, dtype or batch"
        elif isinstance(error, exceptions.NodeDiedError):
            reason = "the node died"
        elif isinstance(error, exceptions.WorkerCrashedError):
            reason = "Ray's worker process died"
        else:
            reason = _first_line(error)
        return {"lost": reason, "final": memory}

    def _deliver(self) -> None:
        while not self._closed.is_set():
            try:
                for key, message in self._ray.get(self._post.take.remote(_TAKE_SECONDS)):
                    self._boxes.deliver(key, message)
            except Exception as error:
                if not self._closed.is_set():
                    self._boxes.deliver_to_all({"gone": _first_line(error)})
                return


class Post:
    """Queue of messages in a Ray actor near the driver.

    Ray's result streams are not used: they end for the driver when it cancels a task, losing what an interrupted worker
    still sends; and Ray Client lacks them.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._arrived = asyncio.Event()

    async def put(self, key: str, message: dict[str, Any]) -> None:
        """Append a message addressed to a key."""
        self._letters.append((key, message))
        self._arrived.set()

    async def take(self, seconds: float) -> list[Letter]:
        """Return all messages, waiting up to `seconds` for the first."""
        try:
            await asyncio.wait_for(self._arrived.wait(), seconds)
        except asyncio.TimeoutError:
            return []
        self._arrived.clear()
        letters, self._letters = self._letters, []
        return letters


class Boxes:
    """Sorts messages into a mailbox per key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}

    def open(self, key: str) -> queue.SimpleQueue[dict[str, Any]]:
        """Open a mailbox."""
        with self._lock:
            return self._boxes.setdefault(key, queue.SimpleQueue())

    def close(self, key: str) -> None:
        """Close a mailbox; later messages for it are dropped."""
        with self._lock:
            self._boxes.pop(key, None)

    def deliver(self, key: str, message: dict[str, Any]) -> None:
        """Deliver a message to its mailbox."""
        with self._lock:
            box = self._boxes.get(key)
        if box is not None:
            box.put(message)

    def deliver_to_all(self, message: dict[str, Any]) -> None:
        """Deliver a message to every mailbox."""
        with self._lock:
            boxes = list(self._boxes.values())
        for box in boxes:
            box.put(message)


def _measure(post: Any, key: str, *args: Any) -> None:
    """Measure, and post events to the driver; the last has arrived when this returns."""
    import ray

    # The node may have been started with Ctrl-C ignored, as background jobs of scripts are; tasks are interrupted by it.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    node_id = ray.get_runtime_context().get_node_id()
    pending: list[Any] = []

    def send(message: dict[str, Any]) -> None:
        pending[:] = [post.put.remote(key, {"node": node_id, **message})]

    try:
        node.measure(send, *args)
    finally:
        for letter in pending:
            awaited(letter, _TAKE_SECONDS)


def _node(info: Mapping[str, Any], probed: Mapping[str, Any]) -> Node:
    resources = dict(info["Resources"])
    facts = dict(probed["facts"])
    # Ray detects GPUs without torch, and reports their type as a resource name.
    gpus = resources.get("GPU", 0)
    if gpus:
        types = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
        facts["gpus"] = f"{gpus:g} x {types[0] if types else 'GPU'}"
    if label := info.get("Labels", {}).get(KIND_LABEL):
        facts["node_kind"] = label
    host, address = probed["hostname"], info["NodeManagerAddress"]
    name = f"{host} ({address}, {info['NodeID'][:6]})"
    return Node(info["NodeID"], name, resources, facts, probed["versions"], f"{host} ({address})")


def _check_reachable(address: str) -> None:
    """Check that an address accepts connections: Ray itself would retry for a quarter of an hour.

    Raises:
        ConnectionError: nobody answers.
    """
    from ray._private.services import canonicalize_bootstrap_address

    client = address.startswith("ray://")
    where = address.removeprefix("ray://") if client else canonicalize_bootstrap_address(address)
    if where is None:  # started or discovered locally
        return
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers at {where} ({error.strerror or error})") from error


def _connection_error(error: BaseException) -> str:
    """Return the text of Ray's connection error, with a remedy."""
    text = truncate(in_words(error).rstrip("."), _MOST_TEXT)
    if "version mismatch" in text.lower():
        return f"{text}: use the same Ray and Python on all machines"
    return (
        f"{text}; start one with `ray start --head`, set RAY_AUTH_MODE=token where it asks for a token (docs/ray.md), or use "
        "address=local for this machine alone"
    )


def _first_line(error: BaseException) -> str:
    """Return the message of a Ray error without the remote traceback."""
    cause = getattr(error, "cause", None)
    lines = [line for line in str(cause or error).strip().splitlines() if line.strip()]
    return " ".join((lines[0] if lines else type(cause or error).__name__).split()).rstrip(".")
