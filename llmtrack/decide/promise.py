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
_SURE = 2.5
_KEEPS_QUALITY = ((16.0, 0.97), (8.0, 0.85), (0.0, 0.35))
"""Minimum weight bits, and the prior probability of keeping the quality bound."""
_PRIOR_MODELS = 2.0
"""Weight of the prior, in scored models of the same width."""


@dataclass(frozen=True)
class Way:
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
class Work:
    """The measured work.

    Attributes:
        objective: metric to optimize.
        higher: whether higher is better.
        new_tokens: per row.
        on_gpu: whether a GPU computes.
    """

    objective: str = "decode_tokens_per_sec"
    higher: bool = True
    new_tokens: int = 32
    on_gpu: bool = False

    @property
    def device(self) -> str:
        """`cpu` or `gpu`."""
        return "gpu" if self.on_gpu else "cpu"


@dataclass(frozen=True)
class Base:
    """The measured baseline.

    Attributes:
        step_s: seconds per decode step.
        prefill_s: seconds to the first token.
        read_s: seconds to move a step's bytes at the copy bandwidth; None if unknown.
        weight_bytes: bytes of the weights; 0 if unknown.
        good: log goodness that predictions are relative to; None if unknown.
    """

    way: Way
    step_s: float
    prefill_s: float
    read_s: float | None = None
    weight_bytes: float = 0.0
    good: float | None = None


@dataclass(frozen=True)
class Prediction:
    """Predicted log goodness of a candidate; higher is better.

    Attributes:
        mean: of the logarithm.
        sd: its standard deviation.
        most: roofline bound, or None.
    """

    mean: float
    sd: float
    most: float | None = None

    @property
    def optimistic(self) -> float:
        """Upper confidence bound."""
        high = self.mean + _SURE * self.sd
        return high if self.most is None else min(high, self.most)

    def improvement(self, over: float) -> float:
        """Return the expected improvement over a value."""
        if self.sd <= 0:
            return max(0.0, self.mean - over)
        z = (self.mean - over) / self.sd
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return float(self.sd * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density))


@dataclass
class Predictor:
    """Predicts candidates from the baseline and other measurements.

    Args:
        ways: all candidates.
        base: the measured baseline.
        work: the measured work.
    """

    ways: Mapping[str, Way]
    base: Base
    work: Work

    def __post_init__(self) -> None:
        self._number = {name: number for number, name in enumerate(self.ways)}
        own = goodness(*_seconds(self.base.way, self.base, self.work), self.base.way, self.work)
        shift = 0.0 if self.base.good is None else self.base.good - own
        self._prior = np.array(
            [shift + goodness(*_seconds(way, self.base, self.work), way, self.work) for way in self.ways.values()]
        )
        self._most = {name: _most(way, self.base, self.work) for name, way in self.ways.items()}
        self._kinship = _kinship(list(self.ways.values()))
        if self.base.good is not None:
            earlier = {name: way.earlier for name, way in self.ways.items() if way.earlier}
            self._learn([self._number[name] for name in earlier], self.base.good + np.log([*earlier.values()]))

    def _learn(self, known: Sequence[int], values: np.ndarray) -> None:
        """Condition the prior on earlier, less certain observations."""
        if len(known):
            among = self._kinship[np.ix_(known, known)] + _EARLIER**2 * np.eye(len(known))
            gain = np.linalg.solve(among, self._kinship[known]).T
            self._prior = self._prior + gain @ (values - self._prior[known])
            self._kinship = self._kinship - gain @ self._kinship[known]

    def predict(self, seen: Mapping[str, float]) -> dict[str, Prediction]:
        """Predict each candidate.

        Args:
            seen: log goodness of the measured candidates.
        """
        known = [self._number[name] for name in seen]
        residuals = np.array(list(seen.values())) - self._prior[known]
        among = self._kinship[np.ix_(known, known)] + _OWN**2 * np.eye(len(known))
        toward = self._kinship[:, known]
        gain = np.linalg.solve(among, toward.T).T if known else toward
        means = self._prior + gain @ residuals
        left = self._kinship.diagonal() + _OWN**2 - (gain * toward).sum(axis=1)
        sds = np.sqrt(np.maximum(left, _OWN**2))
        return {
            name: Prediction(float(means[number]), float(sds[number]), self._most[name])
            for name, number in self._number.items()
        }


def goodness(step_s: float, prefill_s: float, way: Way, work: Work) -> float:
    """Return the log goodness for the given step and prefill times."""
    total = prefill_s + max(work.new_tokens - 1, 0) * step_s
    seconds = {
        "decode_tokens_per_sec": step_s / way.rows,
        "time_to_first_token_ms": 1000 * prefill_s,
        "model_size_mib": way.bits,
        "tokens_per_sec": total / way.rows / work.new_tokens,
    }.get(work.objective, total / way.rows)
    return -math.log(max(seconds, 1e-12))


def keeps_quality(way: Way, kept: Sequence[tuple[Way, bool]]) -> float:
    """Return the probability that a candidate keeps the quality bound.

    Args:
        kept: decided candidates, and whether each keeps the bound.
    """
    if (own := next((known for each, known in kept if each.model == way.model), None)) is not None:
        return float(own)
    prior = next(chance for bits, chance in _KEEPS_QUALITY if way.bits >= bits)
    alike = {each.model: known for each, known in kept if each.bits == way.bits}
    return (_PRIOR_MODELS * prior + sum(alike.values())) / (_PRIOR_MODELS + len(alike))


def _seconds(way: Way, base: Base, work: Work) -> tuple[float, float]:
    """Predict the seconds of a decode step and of the prefill."""
    known, others = (_ON_GPU, _OTHERS_ON_GPU) if work.on_gpu else (_ON_CPU, _OTHERS_ON_CPU)
    read, fixed = known.get(way.kind, others)
    read_s = base.read_s if base.read_s is not None else _READS[work.device] * base.step_s
    read_s = min(read_s, 0.95 * base.step_s)
    slower = _HALF_THE_THREADS ** math.log2(1 / way.threads) if not work.on_gpu else 1.0
    step = (read * read_s * way.bits / base.way.bits + fixed * (base.step_s - read_s)) * slower
    prefill = base.prefill_s * slower * (way.arithmetic / base.way.arithmetic) ** 0.7
    if work.on_gpu:
        prefill *= fixed**0.3
    prefill *= (way.rows / base.way.rows) ** (0.3 if work.on_gpu else 0.9)
    step *= (way.rows / base.way.rows) ** 0.3
    return (step if way.cached else max(step, prefill)), prefill


def _most(way: Way, base: Base, work: Work) -> float | None:
    """Return the bound by bandwidth: no step is faster than reading its weights."""
    if base.read_s is None or not way.cached or work.objective not in ("decode_tokens_per_sec", "tokens_per_sec"):
        return None
    share = way.bits / base.way.bits
    if not work.on_gpu and base.weight_bytes * share < _IN_CACHES:
        return None
    return goodness(base.read_s * share / _BEYOND_COPY[work.device], 0.0, way, work)


def _kinship(ways: Sequence[Way]) -> np.ndarray:
    """Return the covariance matrix of the candidates' prediction errors."""

    def alike(values: Sequence[object]) -> np.ndarray:
        numbers = np.array([values.index(each) for each in values])
        return numbers[:, None] == numbers[None, :]

    kind = alike([way.kind for way in ways])
    shared = _ALL**2 + _THREADS**2 * alike([way.threads for way in ways])
    width = _WIDTH**2 * alike([way.bits for way in ways])
    model = _MODEL**2 * alike([way.model for way in ways])
    return np.asarray(shared + kind * (_KIND**2 + width + model))
