# Made by `make docs` from the experiments' configs; a test keeps the two equal.
"""`llmtrack.run` as type checkers and editors know it: each experiment with its parameters."""

from collections.abc import Sequence
from typing import Literal, overload

from rich.console import Console

from llmtrack.run.notebook import Finished

@overload
def run(
    experiment: Literal["baseline"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    prompt: str | None = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_repeats: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """How fast is the model on this machine, as it comes?

    Args:
        prompt: Text to continue; none: the default prompt.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_repeats: Counted calls at least.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["prompt_length"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    lengths: Sequence[int] | int | str = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_repeats: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """What does a longer prompt cost?

    Args:
        lengths: Prompt lengths in tokens.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_repeats: Counted calls at least.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["cache_padding"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    lengths: Sequence[int] | int | str = ...,
    multiple: int = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    min_repeats: int = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """What does the KV cache save, and what does padding cost and change?

    Args:
        lengths: Output lengths in tokens.
        multiple: Pad one of the batches to a multiple of this many tokens.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        min_repeats: Counted calls at least.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["batching"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    sizes: Sequence[int] | int | str = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_repeats: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """Which batch size makes the most of this machine, and how long does a sample wait for it?

    Args:
        sizes: Batch sizes.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_repeats: Counted calls at least.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["edge_prompts"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    prompts: Sequence[str] | str = ...,
    long_tokens: int | None = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    min_repeats: int = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """Do unusual prompts cost more, and does anything break?

    Args:
        prompts: Prompts to measure.
        long_tokens: Maximum tokens of the long prompts; none: as many as fit into the context.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        min_repeats: Counted calls at least.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["precision"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    dtypes: Sequence[str] | str = ...,
    prompt: str | None = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_repeats: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """Which precision is fastest here, and does it still say the same?

    Args:
        dtypes: Precisions to compare.
        prompt: Text to continue; none: the default prompt.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_repeats: Counted calls at least.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["perplexity"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    dtypes: Sequence[str] | str = ...,
    corpus: str = ...,
    protocol: Literal["documents", "rolling"] = ...,
    max_length: int = ...,
    stride: int = ...,
    bos_rule: Literal["tokenizer", "model", "none"] = ...,
    max_tokens: int = ...,
    batch_size: int | None = ...,
    padding_side: Literal["right", "left"] = ...,
    verbose: bool = ...,
    workers: int | None = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """How well does the model predict a text?

    Args:
        dtypes: Precisions to compare; none: only dtype.
        corpus: builtin, pydoc, or a .txt or .jsonl file.
        protocol: Each text on its own, or all as one stream.
        max_length: Maximum tokens of a document, or of a window.
        stride: rolling: new tokens of each window; 0: max-length.
        bos_rule: Start of each text: what the tokenizer adds, the model's BOS or EOS, or nothing.
        max_tokens: rolling: maximum tokens of the stream; 0: all.
        batch_size: Documents or windows per batch; auto: as many as memory has room for.
        padding_side: Side of the pads of a batch.
        verbose: Print a line per batch.
        workers: Workers that score the text together, each with a copy of the model (docs/ray.md); auto: as many as a cluster has room for.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["quantization"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    recipes: Sequence[str] | str = ...,
    prompt_tokens: int = ...,
    log_model: bool = ...,
    keep_quality: str = ...,
    block_size: Literal[0, 16, 32, 64, 128, 256] = ...,
    symmetric: bool = ...,
    head_bits: Literal[0, 4, 8] = ...,
    calibration: str = ...,
    calibration_tokens: int = ...,
    calibration_method: Literal["minmax", "percentile", "entropy"] = ...,
    provider: str = ...,
    graph_optimization: Literal["all", "extended", "basic", "none"] = ...,
    max_length: int = ...,
    reference_tokens: int = ...,
    workers: int | None = ...,
    corpus: str = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    min_repeats: int = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """What does each quantization recipe win in speed and size, and what does it cost in quality?

    Args:
        recipes: BACKEND/RECIPE, BACKEND/RECIPE@PRECISION or BACKEND/PRECISION, each optionally followed by options separated by spaces: `onnx/int4-weight-only head_bits=4`; all: what can run here.
        prompt_tokens: Tokens of the timed prompt.
        log_model: Log each model of the onnx backend to its MLflow run, for mlflow.pyfunc.
        keep_quality: int8 with 8-bit activations, int4-mixed: exclude the worst layers until perplexity of the calibration text rises by no more than this (such as 5%); none: quantize all; auto: each recipe's own.
        block_size: Weight-only: weights that share a scale; 0: the recipe's own.
        symmetric: Weight-only: blocks without zero points.
        head_bits: int4-weight-only: bits of the head and of a tied embedding; 0: the recipe's own.
        calibration: Calibration text; must differ from the scored one.
        calibration_tokens: Tokens of the calibration text; 0: the recipe's own number.
        calibration_method: int8-static: method of calibration.
        provider: Execution provider of ONNX Runtime.
        graph_optimization: How much ONNX Runtime rewrites the graph on loading.
        max_length: Maximum tokens scored per document.
        reference_tokens: Tokens to compare distributions on.
        workers: Workers that score the text together, each with a copy of the model (docs/ray.md); auto: as many as a cluster has room for.
        corpus: Text that quality is judged by.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        min_repeats: Counted calls at least.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["training"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    model: str = ...,
    learning_rate: float = ...,
    corpus: str = ...,
    start: Literal["auto", "scratch", "weights"] = ...,
    split: Literal["auto", "document", "contiguous"] = ...,
    validation_share: float = ...,
    validation_tokens: int = ...,
    sequence_length: int = ...,
    window_stride: int = ...,
    batch_size: int = ...,
    accumulate: int = ...,
    steps: int = ...,
    warmup_steps: int = ...,
    weight_decay: float = ...,
    clip_norm: float = ...,
    eval_every: int = ...,
    patience: int = ...,
    seed: int = ...,
    sample_tokens: int = ...,
    log_checkpoint: Literal["artifact", "model", "none"] = ...,
    explain: bool = ...,
    output: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """How much does training on a text improve the model on text like it?

    Args:
        model: Model, or comma list of candidates.
        learning_rate: Peak learning rate; 0: 0.003 from scratch, 5e-05 otherwise.
        corpus: builtin, pydoc, or a .txt or .jsonl file.
        start: Start from the model's weights, or fresh ones in the shape of a synthetic: preset; auto: fresh for such a preset.
        split: Hold out whole documents, or the end of the text.
        validation_share: Held-out share of the text.
        validation_tokens: Maximum held-out tokens to score; 0: all.
        sequence_length: Tokens of a window.
        window_stride: Tokens between windows; 0: sequence-length.
        batch_size: Windows per forward pass.
        accumulate: Forward passes per step.
        steps: Optimizer steps.
        warmup_steps: Steps of linear warm-up.
        weight_decay: AdamW weight decay, on matrices only.
        clip_norm: Maximum gradient norm; 0: no clipping.
        eval_every: Steps between evaluations.
        patience: Evaluations without improvement before stopping early; 0: never.
        seed: Seed of the data order, fresh weights and dropout.
        sample_tokens: Tokens generated at each evaluation; 0: none.
        log_checkpoint: Keep the best checkpoint in MLflow as files, as an MLflow model beside them, or only in the output folder.
        explain: Print how the loss of one window is computed.
        output: Folder of the checkpoints; none: one in .llmtrack/training.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["backends"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    recipes: Sequence[str] | str = ...,
    threads: Sequence[int] | int | str = ...,
    lengths: Sequence[int] | int | str = ...,
    sizes: Sequence[int] | int | str = ...,
    min_repeats: int = ...,
    max_length: int = ...,
    reference_tokens: int = ...,
    workers: int | None = ...,
    corpus: str = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """Which runtime should this model run on here, in which of its quantizations, and with how many threads?

    Args:
        recipes: BACKEND/RECIPE or BACKEND/PRECISION, each optionally followed by options separated by spaces: `onnx/int4-weight-only head_bits=4`; all: of each available backend.
        threads: Numbers of threads; 0: PyTorch's default.
        lengths: Tokens of the timed prompts.
        sizes: Batch sizes; all but the first of the first length only.
        min_repeats: Minimum number of counted calls.
        max_length: Maximum tokens scored per document.
        reference_tokens: Tokens to compare distributions on.
        workers: Workers that score the text together, each with a copy of the model (docs/ray.md); auto: as many as a cluster has room for.
        corpus: Text that quality is judged by.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["tune"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    objective: Literal["decode_tokens_per_sec", "tokens_per_sec", "time_to_first_token_ms", "latency_per_sample_s", "model_size_mib", "joules_per_token"] = ...,
    budget: str = ...,
    max_perplexity_increase: str | None = ...,
    max_memory: str | None = ...,
    max_ttft: float | None = ...,
    prompt_tokens: int = ...,
    new_tokens: int = ...,
    margin: str = ...,
    space: str | None = ...,
    register: str | None = ...,
    corpus: str = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    resume: bool = ...,
    executor: Literal["process", "inline"] = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """What is the best way to run this model on this machine?

    Args:
        objective: Metric to optimize.
        budget: Total time, such as 90s, 10m or 1h.
        max_perplexity_increase: Maximum increase over PyTorch in float32, such as 1%; none: any.
        max_memory: Maximum peak memory, such as 2GiB; none: any.
        max_ttft: Maximum milliseconds to the first token; none: any.
        prompt_tokens: Tokens of the prompt.
        new_tokens: New tokens per row.
        margin: Candidates that differ by less count as equal, and the simpler one is recommended.
        space: Only these, such as 'backend=onnx recipe=int8* threads=1,2': also precision, batch_size, use_cache, pad_to_multiple, and options of a backend or recipe (block_size=32,128); none: all that can run here.
        register: Name in MLflow's model registry under which a proven answer is registered, with the alias champion; none: not.
        corpus: Text that quality is judged by.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        resume: Skip scenarios that are measured already, and report them all.
        executor: Measure in a worker process per variant, or in this one.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """

@overload
def run(
    experiment: Literal["suite"],
    *,
    console: Console | None = ...,
    quiet: bool = ...,
    experiments: Sequence[str] | str = ...,
    focus: Literal["quantization"] | None = ...,
    same: Literal["measure", "reuse", "pool"] = ...,
    quick: bool = ...,
    model: str = ...,
    revision: str | None = ...,
    device: str = ...,
    threads: int = ...,
    backend: str = ...,
    dtype: str = ...,
    compile: Literal["none", "default", "max-autotune"] = ...,
    tensor_parallel: int = ...,
    device_map: Literal["none", "auto"] = ...,
    max_new_tokens: int = ...,
    warmup: int = ...,
    min_repeats: int = ...,
    min_seconds: float = ...,
    max_seconds: float = ...,
    executor: Literal["process", "inline", "ray"] = ...,
    address: str = ...,
    nodes: Literal["same", "each"] = ...,
    resources: str = ...,
    resume: bool = ...,
    time_limit: float = ...,
    tracking_uri: str | None = ...,
    experiment_name: str | None = ...,
    traces: int = ...,
) -> Finished:
    """How should this model run on this machine?

    Args:
        experiments: Experiments to run, in this order.
        focus: Run the experiments of one question, with edge prompts on the best variant found.
        same: Scenarios shared by experiments: measure them in each, reuse one run, or pool the repeats.
        quick: A first look in minutes: fewer tokens, repeats and lengths.
        model: Model, or comma list of candidates.
        revision: Revision of a hub model.
        device: auto, cpu, cuda, cuda:N, xpu, xpu:N or mps.
        threads: Intra-op threads on the CPU; 0: PyTorch's default.
        backend: Engine, optionally followed by its options: `llamacpp cache_type=f32`.
        dtype: Precision.
        compile: Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and training; torch backend only.
        tensor_parallel: GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.
        device_map: auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.
        max_new_tokens: New tokens per row.
        warmup: Calls made first and not counted.
        min_repeats: Counted calls at least.
        min_seconds: Seconds of counted calls at least.
        max_seconds: Cap on the seconds of counted calls per scenario.
        executor: Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).
        address: executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.
        nodes: executor=ray: on nodes of one kind of hardware, or on each kind.
        resources: executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.
        resume: Skip scenarios that are measured already, and report them all.
        time_limit: Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x max_seconds of anything else.
        tracking_uri: MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.
        experiment_name: MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.
        traces: Generations kept in a run's MLflow trace; 0: none.
    """
