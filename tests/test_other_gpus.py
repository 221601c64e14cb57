"""Intel, Apple and AMD (ROCm) GPUs as PyTorch would show them: stubs stand in for the hardware."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from llmtrack import devices
from llmtrack.cli import doctor
from llmtrack.engines.torch import pytorch
from llmtrack.engines.torch.decoding import choose_decoding
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.measure.ceilings import best_seconds, device_id
from llmtrack.measure.gauges import gauge_of
from llmtrack.measure.memory import free_memory
from llmtrack.models import synthetic
from llmtrack.onnx.session import choose_provider
from llmtrack.quantize.torchao import check_card
from llmtrack.run.study.announce import print_support, support_notes
from llmtrack.run.study.plan import device_of
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, TrainTask
from llmtrack.tensors.likelihood import _nll_on, chunk_tokens, sum_nll
from llmtrack.tracking.environment import environment_id
from llmtrack.train.session import open_session
from llmtrack.worker.machine import describe

OTHERS = ["xpu", "mps"]


@pytest.fixture
def gpu(monkeypatch, request):
    """A stub of PyTorch's module for a kind of GPU, which lists its calls."""
    kind, calls = request.param, []

    def recording(name, answer):
        return lambda *arguments: calls.append((name, *map(str, arguments))) or answer

    if kind == "mps":
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        answers = {
            "synchronize": None,
            "empty_cache": None,
            "recommended_max_memory": 900,
            "current_allocated_memory": 300,
        }
    else:
        monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
        monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
        answers = {
            "synchronize": None, "empty_cache": None, "memory_reserved": 50, "memory_allocated": 20, "mem_get_info": (570, 1000),
            "max_memory_allocated": 77, "reset_peak_memory_stats": None, "get_device_name": "Intel Arc B580",
        }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(getattr(torch, kind), name, recording(name, answer), raising=False)
    monkeypatch.setattr(devices, "cpu_model", lambda: "Apple M3")
    monkeypatch.setattr(devices, "_without_pytorch", lambda root: ())
    monkeypatch.setattr(devices, "supports_bfloat16", lambda kind: kind == "cpu")
    monkeypatch.setattr("llmtrack.worker.machine.supports_bfloat16", devices.supports_bfloat16)
    return SimpleNamespace(kind=kind, first=f"{kind}:0", calls=calls)


each_gpu = pytest.mark.parametrize("gpu", OTHERS, indirect=True)


@each_gpu
def test_it_is_used_by_name_but_never_by_auto(gpu):
    assert devices.resolve_device(gpu.kind.upper()) == gpu.first
    assert devices.resolve_device(gpu.first) == gpu.first
    assert devices.resolve_device("auto") == "cpu" or torch.cuda.is_available()
    with pytest.raises(UsageError, match=rf"'{gpu.kind}:7' is not available: this machine has \d GPU"):
        devices.resolve_device(f"{gpu.kind}:7")
    with pytest.raises(UsageError, match="unknown device"):
        devices.resolve_device(f"{gpu.kind}:x")


@each_gpu
def test_plan_and_worker_resolve_a_device_alike(gpu):
    machine = describe()
    assert gpu.first in machine["devices"].split(",")
    for requested in ("auto", "cpu", gpu.kind, gpu.first):
        assert device_of(requested, machine) == devices.resolve_device(requested)


@each_gpu
def test_precisions_and_labels_are_those_of_a_gpu(gpu):
    assert devices.resolve_dtype("fp16", gpu.first) == (torch.float16, "float16")
    assert devices.resolve_dtype("bf16", gpu.first) == (torch.float16, "float16 (bfloat16 not supported on this GPU)")
    assert devices.arithmetic_of("float32", gpu.first) == "float32", "only NVIDIA has TF32"


@pytest.mark.parametrize("gpu", ["mps"], indirect=True)
def test_bfloat16_support_is_found_by_a_product(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(devices, "devices", lambda kind: [f"{kind}:0"])
    calls = []

    def ones(*shape, dtype, device):
        calls.append((dtype, device))
        raise TypeError("BFloat16 is not supported on MPS")

    monkeypatch.setattr(torch, "ones", ones)
    assert devices.supports_bfloat16.__wrapped__("mps") is False
    assert calls == [(torch.bfloat16, "mps")]


@each_gpu
def test_synchronization_and_memory_use_its_module(gpu):
    devices.synchronize(torch.device(gpu.first))
    devices.empty_cache(gpu.first)
    devices.reset_peak_memory(gpu.first)
    peak = devices.peak_memory_bytes(gpu.first)
    argument = () if gpu.kind == "mps" else (gpu.first,)
    expected = [("synchronize", *argument), ("empty_cache",)]
    if gpu.kind == "xpu":
        expected += [("reset_peak_memory_stats", gpu.first), ("max_memory_allocated", gpu.first)]
    assert gpu.calls == expected
    assert peak == (77 if gpu.kind == "xpu" else None), "MPS reports no peak"
    assert free_memory(gpu.first) == 600, "xpu: 570 free and 30 cached; mps: 900 - 300"
    name = "Intel Arc B580" if gpu.kind == "xpu" else "Apple M3 GPU"
    assert device_id(gpu.first) == f"{name} {gpu.first}, torch {torch.__version__}"
    assert gauge_of(gpu.first) is None, "the CPU's counters are not the GPU's"


@each_gpu
def test_ceilings_synchronize(gpu):
    best_seconds(gpu.first, lambda: gpu.calls.append("act"), repeats=1)
    synchronize = ("synchronize",) if gpu.kind == "mps" else ("synchronize", gpu.first)
    assert gpu.calls == [synchronize, *8 * ["act"], synchronize]


@each_gpu
def test_a_step_is_timed_after_synchronizing(gpu):
    stamps = Stamps(torch.device(gpu.first), lambda: gpu.calls.append("stamped"))
    stamps.step()
    assert [call if call == "stamped" else call[0] for call in gpu.calls] == ["synchronize", "stamped"]
    assert stamps.seconds is None, "the host was called for each step"


class NoFloat64On(TorchDispatchMode):
    """Fail if a kernel returns float64 on a kind of device, as MPS and some XPUs do."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor) and value.device.type == self.kind:
                assert value.dtype != torch.float64, function
        return result


@pytest.mark.parametrize("kind", OTHERS)
def test_no_float64_on_a_gpu_that_may_lack_it(monkeypatch, kind):
    # Fake tensors would initialise a real GPU.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with FakeTensorMode(), NoFloat64On(kind):
        logits, targets = torch.empty(5, 11, device=kind), torch.empty(5, dtype=torch.int64, device=kind)
        nll = _nll_on(kind)(logits, targets)
    assert (nll.dtype, nll.device.type, tuple(nll.shape)) == (torch.float64, "cpu", (5,))
    assert chunk_tokens(50_000, torch.device(kind)) == chunk_tokens(50_000, torch.device("cpu"))


def test_sums_are_equal_without_float64_on_the_device(monkeypatch):
    torch.manual_seed(0)
    hidden, targets = torch.randn(3, 7, 13), torch.randint(0, 13, (3, 7))
    valid = torch.rand(3, 7) > 0.3
    expected = sum_nll(hidden, targets, valid, lambda part: part, 13)
    monkeypatch.setattr("llmtrack.tensors.likelihood.has_float64", lambda device: False)
    _nll_on.cache_clear()
    try:
        assert torch.equal(sum_nll(hidden, targets, valid, lambda part: part, 13), expected)
    finally:
        _nll_on.cache_clear()


@each_gpu
@pytest.mark.parametrize("option", ["device_map", "tensor_parallel"])
def test_splitting_a_model_is_refused(gpu, option):
    value = "auto" if option == "device_map" else 2
    with pytest.raises(UsageError, match=f"{option} on {gpu.first} is not supported: use device=cpu or cuda"):
        pytorch.load(Variant("synthetic:tiny", device=gpu.kind, options=((option, value),)))


@each_gpu
def test_training_and_onnx_are_refused(gpu, tmp_path):
    with pytest.raises(UsageError, match=f"training on {gpu.first} is not supported"):
        open_session(Variant("synthetic:tiny", device=gpu.kind), TrainTask(output=str(tmp_path)))
    with pytest.raises(UsageError, match=f"the onnx backend on {gpu.first} is not supported"):
        choose_provider(gpu.first)


@pytest.mark.parametrize("kind", OTHERS)
def test_decoding_is_not_compiled_and_cuda_recipes_are_refused(kind):
    model = SimpleNamespace(device=torch.device(kind))
    model.parameters = lambda: iter([SimpleNamespace(device=torch.device(kind))])
    sharing = SimpleNamespace(reason="")
    decoding, warnings = choose_decoding(
        model, "default", pad_id=0, eos_ids=frozenset(), first_position=0, forward=None, sharing=sharing, step=None
    )  # fmt: skip
    title = devices.KINDS[kind].title
    assert (decoding.name, warnings) == ("eager", (f"decoding is not compiled: it was never tried on {title}",))
    with pytest.raises(ScenarioError, match=r"which an (Intel|Apple) GPU"):
        check_card(model, (9, 0), "8-bit floats")


@pytest.mark.parametrize("kind", OTHERS)
def test_random_weights_equal_those_of_the_cpu(kind):
    assert synthetic.drawing_device(f"{kind}:0") == "cpu"
    assert synthetic.digests("tiny", 0, f"{kind}:0") == synthetic.digests("tiny", 0, "cpu")
    assert synthetic.digests("tiny", 0, "cuda:0") == synthetic.digests("tiny", 0, "cuda:1")
    assert synthetic.digests("tiny", 0, "cuda:0") != synthetic.digests("tiny", 0, "cpu")


@each_gpu
def test_the_machines_facts_include_it(gpu):
    facts = describe()
    name = "Intel Arc B580" if gpu.kind == "xpu" else "Apple M3 GPU"
    assert facts["gpu"].endswith(name)
    reason = f"{devices.KINDS[gpu.kind].title} is used only by device={gpu.kind} (never tried on hardware)"
    assert facts["unused_devices"] == reason
    assert environment_id(facts) == environment_id({**facts, "unused_devices": ""})
    finding = doctor._gpu()
    assert (finding.state, finding.remedy) == ("ok", f"not used: {reason}")
    assert finding.text.endswith(name)


def scenario(device):
    return Scenario("a", Variant("synthetic:tiny", device=device), GenerateTask("x"))


ROCM = {"devices": "cpu,cuda:0", "rocm": "6.4"}
IDLE = {"devices": "cpu", "unused_devices": "NVIDIA GPU: PyTorch cannot use its driver"}


@pytest.mark.parametrize(
    ("machine", "device", "system", "expected"),
    [
        ({"devices": "cpu"}, "auto", "Linux", []),
        ({"devices": "cpu,cuda:0", "cuda": "13.0"}, "auto", "Linux", []),
        ({"devices": "cpu"}, "auto", "Windows", ["not supported: Windows"]),
        (ROCM, "auto", "Linux", ["not tried on hardware: AMD GPUs (ROCm 6.4)"]),
        (ROCM, "cpu", "Linux", []),
        ({"devices": "cpu,mps:0"}, "mps", "Darwin", ["not tried on hardware: an Apple GPU (MPS)"]),
        ({"devices": "cpu,xpu:0"}, "xpu:0", "Linux", ["not tried on hardware: an Intel GPU (XPU)"]),
        (IDLE, "auto", "Linux", ["not used: NVIDIA GPU: PyTorch cannot use its driver"]),
        ({**IDLE, "devices": "cpu,cuda:0"}, "auto", "Linux", []),
    ],
)
def test_unsupported_hardware_is_one_line_at_the_start(machine, device, system, expected):
    notes = support_notes(machine, [scenario(device)], system)
    assert len(notes) == len(expected)
    assert all(note.startswith(start) for note, start in zip(notes, expected, strict=True))


def test_unsupported_hardware_is_printed(capsys):
    print_support(Console(width=200), IDLE, [scenario("auto")])
    assert capsys.readouterr().out == "  not used: NVIDIA GPU: PyTorch cannot use its driver\n"


def write_pci_devices(root, *cards):
    for number, (kind, vendor) in enumerate(cards):
        folder = root / f"sys/bus/pci/devices/{number}"
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n")
        (folder / "vendor").write_text(f"{vendor}\n")


def test_gpus_that_pytorch_cannot_use_are_named_with_the_reason(tmp_path, monkeypatch):
    write_pci_devices(tmp_path, ("0x030200", "0x10de"), ("0x030200", "0x10de"), ("0x120000", "0x1002"), ("0x030000", "0x8086"),
        ("0x030000", "0x1d0f"), ("0x020000", "0x8086"))  # fmt: skip
    monkeypatch.setattr(torch, "__version__", "2.99")
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, None)
    monkeypatch.setattr(torch.xpu, "_is_compiled", lambda: False)
    built = "GPU: PyTorch 2.99 is built without"
    assert list(devices._without_pytorch(tmp_path)) == [
        f"NVIDIA {built} CUDA", f"AMD {built} ROCm", f"Intel {built} XPU",
    ]  # fmt: skip
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert next(devices._without_pytorch(tmp_path)) == "NVIDIA GPU: PyTorch cannot use its driver"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert next(devices._without_pytorch(tmp_path)) == "NVIDIA GPU: CUDA_VISIBLE_DEVICES hides it"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not [line for line in devices._without_pytorch(tmp_path) if "NVIDIA" in line]
    assert list(devices._without_pytorch(tmp_path / "empty")) == []


def test_rocm_is_distinguished_from_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert devices.platform_facts() == {"cuda": "13.0"}
    monkeypatch.setattr(torch.version, "hip", "6.4.4")
    assert devices.platform_facts() == {"rocm": "6.4.4"}
    monkeypatch.setattr(devices, "devices", lambda kind: ["cuda:0"] if kind == "cuda" else [])
    monkeypatch.setattr(devices, "unused_devices", lambda: ())
    monkeypatch.setattr(devices, "name_of", lambda device: "AMD Instinct MI300X")
    assert doctor._gpu().text == "AMD Instinct MI300X (ROCm 6.4.4, never tried on hardware)"
