"""Predict candidates before they are measured: the objective, and whether they keep the quality bound.

The time of a decode step is predicted from the baseline's: the weights to read over the memory bandwidth, plus a fixed
launch cost, each scaled by a built-in factor of the runtime. Measurements correct the predictions of similar candidates
(same runtime, weight width, number of threads) by Gaussian-process regression on log(measured / predicted). Candidates
are ordered by expected improvement per second.

Sources: roofline, S. Williams, A. Waterman, D. Patterson, CACM 52 (2009); expected improvement, D. Jones, M. Schonlau,
W. Welch, Journal of Global Optimization 13 (1998); regression, C. Rasmussen, C. Williams, Gaussian Processes (2006),
algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

EAGER, COMPILED, EMULATED = "torch", "torch compiled", "torch emulated"

# Per runtime: weight-read time and fixed step cost, relative to the baseline's (PyTorch, not compiled).
_ON_CPU = {EAGER: (1.0, 1.0), COMPILED: (1.0, 0.8), EMULATED: (2.5, 1.5)}
_OTHERS_ON_CPU = (0.8, 0.3)
_ON_GPU = {EAGER: (1.0, 1.0), COMPILED: (1.0, 0.04)}
_OTHERS_ON_GPU = (1.0, 0.5)
# Time with half of the threads over time with all: memory-bound work gains less than twofold.
_HALF_THE_THREADS = 1.4
# Share of a step spent reading weights, if the bandwidth is unknown.
_READS = {"cpu": 0.8, "gpu": 0.1}
# Factor by which a step can exceed the copy bandwidth: copying also writes, and caches hold a part.
_BEYOND_COPY = {"cpu": 1.6, "gpu": 1.2}
# Smaller weights may stay in the caches, so that memory bandwidth is no bound.
_IN_CACHES = 96 * 2**20

# Standard deviations of log(measured / predicted) shared by similar candidates.
_ALL, _KIND, _WIDTH, _MODEL, _THREADS, _OWN = 0.25, 0.45, 0.25, 0.2, 0.3, 0.1
# Standard deviation of a ratio to the baseline in earlier runs, possibly of another model.
_EARLIER = 0.3
# Standard deviations above the mean that are still plausible.
_OPTIMISM = 2.5
# Minimum weight bits, and the prior probability of keeping the quality bound.
_KEEPS_QUALITY = ((16.0, 0.97), (8.0, 0.85), (0.0, 0.35))
# Weight of that probability, in scored models of the same width.
_PRIOR_WEIGHT = 2.0


@dataclass(frozen=True)
class Prior:
    """Prior knowledge of a candidate.

    Attributes:
        kind: runtime.
        model: the loaded model; candidates of one model compute the same numbers.
        bits: bits per weight.
        arithmetic: bits of the matrix-product operands.
        threads: share of the CPUs used.
        rows: rows per call.
        cached: whether there is a KV cache.
        builds: seconds of each missing conversion, such as an export.
        loads: seconds to load.
        compiles: seconds to compile.
        earlier: ratio to the baseline in earlier runs on this machine, or None.
    """

    kind: str
    model: str
    bits: float = 32.0
    arithmetic: float = 32.0
    threads: float = 1.0
    rows: int = 1
    cached: bool = True
    builds: Mapping[str, float] = field(default_factory=dict)
    loads: float = 1.0
    compiles: float = 0.0
    earlier: float | None = None


@dataclass(frozen=True)
class Workload:
    """What is measured and optimized, with so many new tokens per row."""

    objective: str = "decode_tokens_per_sec"
    higher: bool = True
    new_tokens: int = 32
    on_gpu: bool = False

    @property
    def device(self) -> str:
        """`cpu` or `gpu`."""
        return "gpu" if self.on_gpu else "cpu"


@dataclass(frozen=True)
class Baseline:
    """The measured baseline.

    Attributes:
        step_s: seconds per decode step.
        prefill_s: seconds to the first token.
        read_s: seconds to move a step's bytes at the copy bandwidth; None if unknown.
        weight_bytes: 0 if unknown.
        log_goodness: that predictions are relative to; None if unknown.
    """

    prior: Prior
    step_s: float
    prefill_s: float
    read_s: float | None = None
    weight_bytes: float = 0.0
    log_goodness: float | None = None


@dataclass(frozen=True)
class Prediction:
    """Predicted log goodness of a candidate (higher is better), and the bound by the memory bandwidth, if any."""

    mean: float
    sd: float
    bound: float | None = None

    @property
    def optimistic(self) -> float:
        """Upper confidence bound."""
        high = self.mean + _OPTIMISM * self.sd
        return high if self.bound is None else min(high, self.bound)

    def improvement(self, over: float) -> float:
        """Return the expected improvement over a value."""
        if self.sd <= 0:
            return max(0.0, self.mean - over)
        z = (self.mean - over) / self.sd
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return float(self.sd * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density))


class Predictor:
    """Predicts candidates from the baseline and other measurements."""

    def __init__(self, priors: Mapping[str, Prior], base: Baseline, work: Workload) -> None:
        self._index = {name: index for index, name in enumerate(priors)}
        predicted = np.array(
            [_log_goodness(*_step_and_prefill_s(prior, base, work), prior, work) for prior in priors.values()]
        )
        if base.log_goodness is not None:
            of_base = _log_goodness(*_step_and_prefill_s(base.prior, base, work), base.prior, work)
            predicted = (base.log_goodness - of_base) + predicted
        self._means = predicted
        self._covariance = _prior_covariance(list(priors.values()))
        self._bounds = {name: _bandwidth_bound(prior, base, work) for name, prior in priors.items()}
        if base.log_goodness is not None:
            earlier = {name: prior.earlier for name, prior in priors.items() if prior.earlier}
            self._condition([self._index[name] for name in earlier], base.log_goodness + np.log([*earlier.values()]))

    def _condition(self, known: Sequence[int], values: np.ndarray) -> None:
        """Condition means and covariance on earlier, less certain observations."""
        if len(known):
            among_known = self._covariance[np.ix_(known, known)] + _EARLIER**2 * np.eye(len(known))
            gain = np.linalg.solve(among_known, self._covariance[known]).T
            self._means = self._means + gain @ (values - self._means[known])
            self._covariance = self._covariance - gain @ self._covariance[known]

    def predict(self, measured: Mapping[str, float]) -> dict[str, Prediction]:
        """Predict each candidate from the log goodness of the measured ones."""
        known = [self._index[name] for name in measured]
        residuals = np.array(list(measured.values())) - self._means[known]
        among_known = self._covariance[np.ix_(known, known)] + _OWN**2 * np.eye(len(known))
        with_known = self._covariance[:, known]
        gain = np.linalg.solve(among_known, with_known.T).T if known else with_known
        means = self._means + gain @ residuals
        variances = self._covariance.diagonal() + _OWN**2 - (gain * with_known).sum(axis=1)
        sds = np.sqrt(np.maximum(variances, _OWN**2))
        return {
            name: Prediction(float(means[index]), float(sds[index]), self._bounds[name])
            for name, index in self._index.items()
        }


def keeps_quality(prior: Prior, decided: Sequence[tuple[Prior, bool]]) -> float:
    """Return the probability that a candidate keeps the quality bound, given whether the decided ones keep it."""
    for other, keeps in decided:
        if other.model == prior.model:
            return float(keeps)
    probability = next(chance for bits, chance in _KEEPS_QUALITY if prior.bits >= bits)
    same_width = {other.model: keeps for other, keeps in decided if other.bits == prior.bits}
    return (_PRIOR_WEIGHT * probability + sum(same_width.values())) / (_PRIOR_WEIGHT + len(same_width))


def _log_goodness(step_s: float, prefill_s: float, prior: Prior, work: Workload) -> float:
    total = prefill_s + max(work.new_tokens - 1, 0) * step_s
    cost = {
        "decode_tokens_per_sec": step_s / prior.rows,
        "time_to_first_token_ms": 1000 * prefill_s,
        "model_size_mib": prior.bits,
        "tokens_per_sec": total / prior.rows / work.new_tokens,
    }.get(work.objective, total / prior.rows)
    return -math.log(max(cost, 1e-12))


def _step_and_prefill_s(prior: Prior, base: Baseline, work: Workload) -> tuple[float, float]:
    """Predict the seconds of a decode step and of the prefill."""
    by_kind, default = (_ON_GPU, _OTHERS_ON_GPU) if work.on_gpu else (_ON_CPU, _OTHERS_ON_CPU)
    read, fixed = by_kind.get(prior.kind, default)
    read_s = base.read_s if base.read_s is not None else _READS[work.device] * base.step_s
    read_s = min(read_s, 0.95 * base.step_s)
    slower = _HALF_THE_THREADS ** math.log2(1 / prior.threads) if not work.on_gpu else 1.0
    step = (read * read_s * prior.bits / base.prior.bits + fixed * (base.step_s - read_s)) * slower
    prefill = base.prefill_s * slower * (prior.arithmetic / base.prior.arithmetic) ** 0.7
    if work.on_gpu:
        prefill *= fixed**0.3
    prefill *= (prior.rows / base.prior.rows) ** (0.3 if work.on_gpu else 0.9)
    step *= (prior.rows / base.prior.rows) ** 0.3
    return (step if prior.cached else max(step, prefill)), prefill


def _bandwidth_bound(prior: Prior, base: Baseline, work: Workload) -> float | None:
    """Return the best log goodness that the memory bandwidth allows: no step is faster than reading its weights."""
    if base.read_s is None or not prior.cached or work.objective not in ("decode_tokens_per_sec", "tokens_per_sec"):
        return None
    share = prior.bits / base.prior.bits
    if not work.on_gpu and base.weight_bytes * share < _IN_CACHES:
        return None
    return _log_goodness(base.read_s * share / _BEYOND_COPY[work.device], 0.0, prior, work)


def _prior_covariance(priors: Sequence[Prior]) -> np.ndarray:
    """Return the covariance matrix of the candidates' prediction errors."""

    def equal(values: Sequence[object]) -> np.ndarray:
        numbers = np.array([values.index(value) for value in values])
        return numbers[:, None] == numbers[None, :]

    kind = equal([prior.kind for prior in priors])
    threads = _THREADS**2 * equal([prior.threads for prior in priors])
    width = _WIDTH**2 * equal([prior.bits for prior in priors])
    model = _MODEL**2 * equal([prior.model for prior in priors])
    return np.asarray(_ALL**2 + threads + kind * (_KIND**2 + width + model))
