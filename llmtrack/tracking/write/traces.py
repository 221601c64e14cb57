"""Write the generations of a run as one MLflow trace, a span each, in OpenTelemetry's names for generative AI.

A trace costs a transaction and a file, however many spans it has.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from llmtrack.host.formatting import truncate
from llmtrack.spec.outcome import Generation
from llmtrack.tracking.store_errors import is_permanent
from llmtrack.tracking.write.records import RunRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Span, TraceInfo

# The first MLflow that stores a trace under the id that it is sent with.
_OLDEST = (3, 3)
_PREVIEW = 1_000
_MICRO = 1_000_000

# Whether the store of a client keeps traces.
_keeps: WeakKeyDictionary[MlflowClient, bool] = WeakKeyDictionary()


def log(client: MlflowClient, experiment_id: str, run_id: str, model_id: str | None, record: RunRecord) -> None:
    """Write the generations of a record as a trace of its run and logged model, if the store keeps traces.

    Idempotent: the trace of a run has the same id whenever it is sent.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    if not record.generations or not _keeps_traces(client):
        return
    from mlflow.entities import TraceData, TraceInfo, TraceLocation, TraceState

    spans = spans_of(run_id, record)
    root, generations = spans[0], record.generations
    metadata = {
        "mlflow.sourceRun": run_id,
        **({"mlflow.modelId": model_id} if model_id else {}),
        "mlflow.trace_schema.version": "3",
        "mlflow.trace.tokenUsage": json.dumps(
            _usage(sum(gen.prompt_tokens for gen in generations), sum(gen.new_tokens for gen in generations))
        ),
    }
    info = TraceInfo(
        trace_id=root.trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=root.start_time_ns // 1_000_000,
        state=TraceState.OK,
        request_preview=truncate(_shown(root.inputs), _PREVIEW, "..."),
        response_preview=truncate(_shown(root.outputs), _PREVIEW, "..."),
        execution_duration=((root.end_time_ns or 0) - root.start_time_ns) // 1_000_000,
        trace_metadata=metadata,
        tags={"mlflow.traceName": record.run_name},
    )
    stored = _start(client, info)
    _upload(client, stored.tags["mlflow.artifactLocation"], json.dumps(TraceData(spans).to_dict(), ensure_ascii=False))


def _start(client: MlflowClient, info: TraceInfo) -> TraceInfo:
    """Store a trace without its spans, unless it exists."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracing.client import TracingClient

    tracing = TracingClient(client.tracking_uri)
    try:
        return tracing.start_trace(info)
    except MlflowException as error:
        if not is_permanent(error):
            raise
        return tracing.get_trace_info(info.trace_id)


def _upload(client: MlflowClient, place: str, text: str) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(place, tracking_uri=client.tracking_uri).upload_trace_data(text)


def lacking(client: MlflowClient) -> str:
    """Describe what a store does not support; empty if nothing.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    return "" if _keeps_traces(client) else "it stores no traces of generations; MLflow 3.3 and newer do"


def spans_of(run_id: str, record: RunRecord) -> list[Span]:
    """Return the spans of a run's trace: one per generation, after a root if there are several."""
    generations = record.generations
    if len(generations) == 1:
        return [_generation_span(run_id, 0, generations[0], record)]
    start = min(gen.started_at for gen in generations)
    end = max(gen.started_at + gen.seconds for gen in generations)
    root = {
        "mlflow.spanType": "CHAIN",
        "mlflow.spanInputs": [gen.prompt for gen in generations],
        "mlflow.spanOutputs": [gen.text for gen in generations],
    }
    return [
        _span(run_id, 0, "generations", start, end - start, root),
        *(_generation_span(run_id, number, gen, record) for number, gen in enumerate(generations, start=1)),
    ]


def _generation_span(run_id: str, number: int, generation: Generation, record: RunRecord) -> Span:
    attributes = {
        "mlflow.spanType": "LLM",
        "mlflow.spanInputs": generation.prompt,
        "mlflow.spanOutputs": generation.text,
        "mlflow.chat.tokenUsage": _usage(generation.prompt_tokens, generation.new_tokens),
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": str(record.params.get("backend", "")),
        "gen_ai.request.model": str(record.params.get("model_id", "")),
        "gen_ai.request.max_tokens": record.params.get("max_new_tokens"),
        "gen_ai.response.time_to_first_chunk": generation.first_token_s,
        "gen_ai.usage.input_tokens": generation.prompt_tokens,
        "gen_ai.usage.output_tokens": generation.new_tokens,
        "llmtrack.rows": generation.rows,
        "llmtrack.repeat": generation.repeat,
    }
    known = {key: value for key, value in attributes.items() if value not in (None, "") or key.startswith("mlflow.")}
    return _span(run_id, number, "text_completion", generation.started_at, generation.seconds, known)


def _span(run_id: str, number: int, name: str, start_s: float, seconds: float, attributes: dict[str, Any]) -> Span:
    from mlflow.entities import Span

    trace_id = _id(run_id, 16)
    start = 1_000 * round(_MICRO * start_s)
    return Span.from_dict(
        {
            "trace_id": _base64(trace_id),
            "span_id": _base64(_id(f"{run_id} {number}", 8)),
            "parent_span_id": _base64(_id(f"{run_id} 0", 8)) if number else None,
            "name": name,
            "start_time_unix_nano": start,
            "end_time_unix_nano": start + 1_000 * round(_MICRO * seconds),
            "events": [],
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {
                key: json.dumps(value, ensure_ascii=False)
                for key, value in {"mlflow.traceRequestId": f"tr-{trace_id.hex()}", **attributes}.items()
            },
        }
    )


def _usage(read: int, generated: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": generated, "total_tokens": read + generated}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _id(of: str, length: int) -> bytes:
    return hashlib.sha256(of.encode()).digest()[:length]


def _base64(number: bytes) -> str:
    return base64.b64encode(number).decode()


def _keeps_traces(client: MlflowClient) -> bool:
    if client not in _keeps:
        _keeps[client] = min(_version_here(), _version_of(client)) >= _OLDEST
    return _keeps[client]


def _version_here() -> tuple[int, ...]:
    import mlflow

    return _numbers(mlflow.__version__)


def _version_of(client: MlflowClient) -> tuple[int, ...]:
    """Return the version of a server, or MLflow's own for any other store.

    An older server would store a trace under a new id each time that it is sent.
    """
    if not client.tracking_uri.startswith("http"):
        return _version_here()
    from mlflow.utils.rest_utils import http_request

    response = http_request(client._tracking_client.store.get_host_creds(), "/version", "GET")
    return _numbers(response.text) if response.ok else ()


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"(\d+)\.(\d+)", version)
    return (int(release[1]), int(release[2])) if release else ()
