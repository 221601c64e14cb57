"""Predict candidates before they are measured: what each may reach, and whether it keeps its quality.

The time of a decode step is predicted from the baseline's: the weights that must be read over the bandwidth of the machine, and a
fixed cost of launching the step's operations, each by a built-in factor of the runtime. What is measured corrects the
predictions of its kin (same runtime, same width of weights, same number of threads) by Gaussian-process regression on the
logarithm of measured over predicted. Candidates are ordered by expected improvement per second.

Sources: roofline, S. Williams, A. Waterman, D. Patterson, CACM 52 (2009); expected improvement, D. Jones, M. Schonlau, W. Welch,
Journal of Global Optimization 13 (1998); regression, C. Rasmussen, C. Williams, Gaussian Processes (2006), algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

EAGER, COMPILED, EMULATED = "torch", "torch compiled", "torch emulated"

# Of each runtime: how many times the baseline's (PyTorch, not compiled) a read of the weights takes, and the fixed cost of a step.
_ON_CPU = {EAGER: (1.0, 1.0), COMPILED: (1.0, 0.8), EMULATED: (2.5, 1.5)}
_OTHERS_ON_CPU = (0.8, 0.3)
_ON_GPU = {EAGER: (1.0, 1.0), COMPILED: (1.0, 0.04)}
_OTHERS_ON_GPU = (1.0, 0.5)
# Seconds that half of the threads take over those of all: memory-bound work gains less than twofold.
_HALF_THE_THREADS = 1.4
# Share of a step that reads weights, where no bandwidth is known.
_READS = {"cpu": 0.8, "gpu": 0.1}
# What a step can beat of the copy bandwidth: a copy writes, too, and caches hold a part.
_BEYOND_COPY = {"cpu": 1.6, "gpu": 1.2}
# Weights of fewer bytes may stay in the caches, of which the bandwidth of memory says nothing.
_IN_CACHES = 96 * 2**20

# Standard deviations of log(measured / predicted) that kin have in common.
_ALL, _KIND, _WIDTH, _MODEL, _THREADS, _OWN = 0.25, 0.45, 0.25, 0.2, 0.3, 0.1
# And of a ratio to the baseline that was seen earlier, maybe of another model.
_EARLIER = 0.3
_SURE = 2.5
_KEEPS_QUALITY = ((16.0, 0.97), (8.0, 0.85), (0.0, 0.35))
"""Chance that weights of at least so many bits keep to a bound on quality."""
_PRIOR_MODELS = 2.0
"""So many scored models of the same width weigh as much as that chance."""


@dataclass(frozen=True)
class Way:
    """What is known of a candidate before it is measured.

    Attributes:
        kind: the runtime that computes it.
        model: what is loaded; candidates of one model compute the same numbers.
        bits: bits of a weight.
        arithmetic: bits of the numbers that matrix products take.
        threads: share of the CPUs that compute.
        rows: rows of a call.
        cached: whether there is a KV cache.
        builds: seconds by what has to be made before it can be loaded, such as an export; what is there already is left out.
        loads: seconds that loading takes.
        compiles: seconds that compiling takes.
        earlier: how many times as good as the baseline it was in earlier runs of this machine; None: not known.
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
    """What is measured.

    Attributes:
        objective: metric to be best in.
        higher: whether more of it is better.
        new_tokens: of each row.
        on_gpu: whether a GPU computes.
    """

    objective: str = "decode_tokens_per_sec"
    higher: bool = True
    new_tokens: int = 32
    on_gpu: bool = False

    @property
    def device(self) -> str:
        """Return `cpu` or `gpu`."""
        return "gpu" if self.on_gpu else "cpu"


@dataclass(frozen=True)
class Base:
    """The baseline as measured.

    Attributes:
        way: the baseline.
        step_s: seconds of a decode step.
        prefill_s: seconds to the first token.
        read_s: seconds that a step's bytes take at the copy bandwidth; None: not known.
        weight_bytes: bytes of the weights; 0: not known.
        good: logarithm of how good it is, which predictions are relative to; None: not known.
    """

    way: Way
    step_s: float
    prefill_s: float
    read_s: float | None = None
    weight_bytes: float = 0.0
    good: float | None = None


@dataclass(frozen=True)
class Prediction:
    """Logarithm of how good a candidate is predicted to be; more is better.

    Attributes:
        mean: of the logarithm.
        sd: its standard deviation.
        most: bound by the roofline; None: none is known.
    """

    mean: float
    sd: float
    most: float | None = None

    @property
    def optimistic(self) -> float:
        """Return what it is as good as certain not to exceed."""
        high = self.mean + _SURE * self.sd
        return high if self.most is None else min(high, self.most)

    def improvement(self, over: float) -> float:
        """Return by how much it is expected to exceed a value, counting nothing where it does not."""
        if self.sd <= 0:
            return max(0.0, self.mean - over)
        z = (self.mean - over) / self.sd
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return float(self.sd * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density))


@dataclass
class Predictor:
    """Predicts candidates from the baseline and from what was measured of others.

    Args:
        ways: all candidates.
        base: the baseline as measured.
        work: what is measured.
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
        """Let what was seen earlier, in less certain terms, be what is expected before anything is seen."""
        if len(known):
            among = self._kinship[np.ix_(known, known)] + _EARLIER**2 * np.eye(len(known))
            gain = np.linalg.solve(among, self._kinship[known]).T
            self._prior = self._prior + gain @ (values - self._prior[known])
            self._kinship = self._kinship - gain @ self._kinship[known]

    def predict(self, seen: Mapping[str, float]) -> dict[str, Prediction]:
        """Return the prediction of each candidate.

        Args:
            seen: by candidate measured so far, the logarithm of how good it is.
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
    """Return the logarithm of how good an objective is by the seconds of a decode step and of the prefill."""
    total = prefill_s + max(work.new_tokens - 1, 0) * step_s
    seconds = {
        "decode_tokens_per_sec": step_s / way.rows,
        "time_to_first_token_ms": 1000 * prefill_s,
        "model_size_mib": way.bits,
        "tokens_per_sec": total / way.rows / work.new_tokens,
    }.get(work.objective, total / way.rows)
    return -math.log(max(seconds, 1e-12))


def keeps_quality(way: Way, kept: Sequence[tuple[Way, bool]]) -> float:
    """Return the chance that a candidate keeps to the bound on quality.

    Args:
        way: the candidate.
        kept: candidates whose quality is decided, and whether each keeps to the bound.
    """
    if (own := next((known for each, known in kept if each.model == way.model), None)) is not None:
        return float(own)
    prior = next(chance for bits, chance in _KEEPS_QUALITY if way.bits >= bits)
    alike = {each.model: known for each, known in kept if each.bits == way.bits}
    return (_PRIOR_MODELS * prior + sum(alike.values())) / (_PRIOR_MODELS + len(alike))


def _seconds(way: Way, base: Base, work: Work) -> tuple[float, float]:
    """Return the predicted seconds of a decode step and of the prefill."""
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
    """Return the most that the bandwidth allows: no step is faster than its weights are read."""
    if base.read_s is None or not way.cached or work.objective not in ("decode_tokens_per_sec", "tokens_per_sec"):
        return None
    share = way.bits / base.way.bits
    if not work.on_gpu and base.weight_bytes * share < _IN_CACHES:
        return None
    return goodness(base.read_s * share / _BEYOND_COPY[work.device], 0.0, way, work)


def _kinship(ways: Sequence[Way]) -> np.ndarray:
    """Return the covariance of what is not predicted right of each two candidates."""

    def alike(values: Sequence[object]) -> np.ndarray:
        numbers = np.array([values.index(each) for each in values])
        return numbers[:, None] == numbers[None, :]

    kind = alike([way.kind for way in ways])
    shared = _ALL**2 + _THREADS**2 * alike([way.threads for way in ways])
    width = _WIDTH**2 * alike([way.bits for way in ways])
    model = _MODEL**2 * alike([way.model for way in ways])
    return np.asarray(shared + kind * (_KIND**2 + width + model))
