"""Tensor parallelism: one model whose layers are sharded over processes, one per card, driven as one engine.

The measuring process is rank 0. It starts the others, like torchrun, and broadcasts each call before making it itself,
so that all run the same code in step; the timed interval is rank 0's call, including the broadcast. transformers shards
the layers by the model's own plan (`tp_plan`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from llmtrack.devices import devices, kind_of, require_tried, resolve_device
from llmtrack.engine import EngineInfo, Generated, GenerateRequest, Operations
from llmtrack.engines.base import WithTokenizer
from llmtrack.engines.options import refuse_combined
from llmtrack.errors import ScenarioError, UsageError, in_words
from llmtrack.host.processes import child_environment, when_parent_ends
from llmtrack.models.folder import model_folder
from llmtrack.spec.scenario import Variant

TIMEOUT = timedelta(minutes=10)
"""Timeout of a rank waiting for another."""

Load = Callable[[Variant], Any]


def load_sharded(variant: Variant, count: int, load: Load) -> ShardedEngine:
    """Load a model sharded over several processes.

    Args:
        variant: its device is the kind of card, or `cpu`.
        load: loads the shard of a rank, given a variant whose model is a folder and whose device is the rank's.

    Raises:
        UsageError: there are too few cards, or an incompatible option is set.
        ScenarioError: a rank could not load its shard.
    """
    refuse_combined(variant, ("quantization", "compile", "device_map"), "tensor_parallel", "tensor_parallel=1")
    device = resolve_device(variant.device)
    require_tried(device, "tensor_parallel")
    kind = kind_of(device)
    cards = len(devices("cuda"))
    if kind == "cpu" and cards:
        raise UsageError(
            "tensor_parallel on the CPU of a machine with a GPU is not possible: use device=cuda, or hide the GPU "
            "(CUDA_VISIBLE_DEVICES=)"
        )
    if kind == "cuda" and count > cards:
        raise UsageError(f"tensor_parallel={count} needs {count} GPUs, but there are {cards}: use fewer")
    if kind == "cpu" and count > (cpus := os.cpu_count() or 1):
        raise UsageError(f"tensor_parallel={count} needs {count} CPUs, but there are {cpus}: use fewer")
    folder = model_folder(variant.model, variant.revision)
    shard = replace(variant, model=str(folder.path), revision=None, device=kind)
    ranks = Ranks.get(count, kind)
    try:
        number, local, infos = ranks.load(shard, load)
    except Exception:
        ranks.release()
        raise
    engine = ShardedEngine(ranks, number, local, joint_info(infos, count if kind == "cuda" else 1))
    return engine.named_after(folder, tensor_parallel=count)


def joint_info(infos: Sequence[EngineInfo], devices: int) -> EngineInfo:
    """Combine the infos of all ranks: sizes and work are totals.

    Replicated weights (norms, and an unsharded head) are read by every rank and count for each.

    Args:
        devices: number of devices that compute in parallel.
    """
    first = infos[0]
    windows: Counter[int] = Counter()
    for info in infos:
        windows.update(dict(info.kv_windows))
    counts = [info.operations for info in infos if info.operations is not None]
    operations = (
        Operations(*(sum(getattr(count, name) for count in counts) for name in ("per_token", "per_context", "head")))
        if len(counts) == len(infos)
        else None
    )
    return replace(
        first,
        model_size_bytes=sum(info.model_size_bytes for info in infos),
        step_weight_bytes=sum(info.step_weight_bytes for info in infos),
        kv_bytes_per_token=sum(info.kv_bytes_per_token for info in infos),
        kv_windows=tuple(sorted(windows.items())),
        state_bytes=sum(info.state_bytes for info in infos),
        operations=operations,
        devices=devices,
        parallel=devices,
    )


class Ranks:
    """The group of processes, of which this is rank 0; there is at most one."""

    _open: Ranks | None = None

    def __init__(self, count: int, kind: str) -> None:
        self.count, self.kind, self._users, self._loaded = count, kind, 0, 0
        store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
        self._peers = [
            subprocess.Popen(
                [sys.executable, "-m", "llmtrack.engines.torch.peer", str(rank), str(count), str(store.port), kind],
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            for rank in range(1, count)
        ]
        self._control = join(store, 0, count, kind)

    @classmethod
    def get(cls, count: int, kind: str) -> Ranks:
        """Return the open group, or open one; each `get` needs a `release`.

        Raises:
            UsageError: a group of another size is open.
        """
        if cls._open is not None and (cls._open.count, cls._open.kind) != (count, kind):
            raise UsageError(f"a model is already sharded over {cls._open.count} processes: close it first")
        if cls._open is None:
            cls._open = cls(count, kind)
        cls._open._users += 1
        return cls._open

    def load(self, variant: Variant, load: Load) -> tuple[int, Any, list[EngineInfo]]:
        """Load a shard on each rank; return the engine's number, the local shard, and the info of each rank.

        Raises:
            ScenarioError: a rank failed.
        """
        self._loaded += 1
        self.send("load", self._loaded, variant)
        engine, info = load_shard(variant, load, 0, self.count)
        answers = gather(info, self._control, self.count)
        failed = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if isinstance(answer, str)]
        if failed:
            self.send("close", self._loaded)
            raise ScenarioError(f"the model could not be sharded: {'; '.join(failed)}", kind="unsupported")
        return self._loaded, engine, answers

    def send(self, *message: Any) -> None:
        """Broadcast a command, which the others execute while this rank does the same."""
        dist.broadcast_object_list([message], src=0, group=self._control)

    def peak_memory(self, number: int, local: int | None) -> int | None:
        """Return the sum of all ranks' peaks, None if any is unknown."""
        self.send("peak_memory_bytes", number)
        peaks = gather(local, self._control, self.count)
        return None if None in peaks else sum(peaks)

    def release(self) -> None:
        """End the other processes once no model uses them."""
        self._users -= 1
        if self._users:
            return
        type(self)._open = None
        with suppress(Exception):  # a rank may be gone already
            self.send("end")
        for peer in self._peers:
            try:
                peer.wait(timeout=30)
            except subprocess.TimeoutExpired:
                peer.kill()
        dist.destroy_process_group()


class ShardedEngine(WithTokenizer):
    """An engine whose calls are made by all ranks at once.

    Args:
        number: its number among the ranks' engines.
        local: this rank's shard.
        info: of all shards together.
    """

    def __init__(self, ranks: Ranks, number: int, local: Any, info: EngineInfo) -> None:
        self._ranks, self._number, self._local, self._info = ranks, number, local, info
        self.tokenizer = local.tokenizer

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate on all ranks, calling `on_step` as the tokens of a step reach this one."""
        self._ranks.send("generate", self._number, request)
        return self._local.generate(request, on_step)

    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Engine.score`."""
        self._ranks.send("score", self._number, input_ids, attention_mask, scored)
        return self._local.score(input_ids, attention_mask, scored)

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""
        self._ranks.send("next_token_logits", self._number, list(ids))
        return self._local.next_token_logits(ids)

    def synchronize(self) -> None:
        """Wait for this rank's device, which waits for the others in each layer."""
        self._local.synchronize()

    def reset_peak_memory(self) -> None:
        """Reset the peak memory on all ranks."""
        self._ranks.send("reset_peak_memory", self._number)
        self._local.reset_peak_memory()

    def peak_memory_bytes(self) -> int | None:
        """Return the sum of the ranks' peaks since the last reset."""
        return self._ranks.peak_memory(self._number, self._local.peak_memory_bytes())

    def close(self) -> None:
        """Free the model on all ranks."""
        with suppress(Exception):  # a rank may be gone already
            self._ranks.send("close", self._number)
        self._local.close()
        self._ranks.release()


def join(store: dist.TCPStore, rank: int, count: int, kind: str) -> Any:
    """Join the group of ranks; return the group for rank 0's commands."""
    if kind == "cuda":
        torch.cuda.set_device(rank)
    _register_linear_sharding()
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIMEOUT)
    # Always through the host, so that commands do not wait for a card.
    return dist.new_group(backend="gloo", timeout=timedelta(days=1))


def _register_linear_sharding() -> None:
    """Register sharding rules for linear layers.

    In inference mode, a linear layer is one operator without a sharding rule in PyTorch, which would then search all
    shardings for half a second per new shape and triple the time of each call.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.aten.linear.default)
    def linear(x: Any, weight: Any, bias: Any = None) -> list[tuple[list[Any], list[Any]]]:
        """Return the result's placement with those of input, weight and bias."""
        biases = 0 if bias is None else 1
        placements: list[tuple[list[Any], list[Any]]] = [
            ([Replicate()], [Replicate(), Replicate(), *[Replicate()] * biases]),
            ([Shard(x.ndim - 1)], [Replicate(), Shard(0), *[Shard(0)] * biases]),
        ]
        if not biases:
            placements.append(([Partial()], [Shard(x.ndim - 1), Shard(1)]))
        return placements


def gather(answer: Any, control: Any, count: int) -> list[Any]:
    """Return the answers of all ranks, by rank."""
    answers: list[Any] = [None] * count
    dist.all_gather_object(answers, answer, group=control)
    return answers


def load_shard(variant: Variant, load: Load, rank: int, count: int) -> tuple[Any, EngineInfo | str]:
    """Load a rank's shard; return it with its info, or None with the reason of the failure."""
    device = f"cuda:{rank}" if variant.device == "cuda" else variant.device
    try:
        with _as_torchrun(rank, count):
            engine = load(replace(variant, device=device))
    except Exception as error:
        return None, in_words(error)
    return engine, engine.info


@contextmanager
def _as_torchrun(rank: int, count: int) -> Iterator[None]:
    """Set the environment variables that transformers expects from a launcher while loading."""
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def follow(rank: int, count: int, port: int, kind: str, load: Load) -> None:
    """Execute rank 0's commands until it ends."""
    when_parent_ends(os.getppid(), lambda: os._exit(1))
    store = dist.TCPStore("127.0.0.1", port, count, is_master=False)
    control = join(store, rank, count, kind)
    engines: dict[int, Any] = {}
    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0, group=control)
        command, *arguments = message[0]
        if command == "end":
            break
        number, *arguments = arguments
        if command == "load":
            engine, info = load_shard(arguments[0], load, rank, count)
            engines[number] = engine
            gather(info, control, count)
        elif command == "close":
            engine = engines.pop(number, None)
            if engine is not None:
                engine.close()
        elif command == "peak_memory_bytes":
            gather(engines[number].peak_memory_bytes(), control, count)
        else:
            if command == "generate":
                arguments.append(lambda: None)
            # A failure here also occurs on rank 0, which reports it.
            with suppress(Exception):
                getattr(engines[number], command)(*arguments)
    dist.destroy_process_group()
