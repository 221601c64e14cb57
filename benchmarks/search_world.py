"""A simulated machine for searches: known speeds and qualities, noise, drift and load, and the fixed costs of real candidates.

Starting a worker, loading, converting and scoring take simulated seconds; some candidates fail to start and some
hang until their time is used up. Predictions have random errors, as on a real machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from llmtrack.decide.goal import Goal, PartScore, SearchState, Trial
from llmtrack.decide.predictor import Prior
from llmtrack.decide.tuning import Tuning

NEW_TOKENS, PARTS, BOUND = 32, 12, 1.01
BASE_SPEED = 20.0
START_S, LOAD_S, PART_S = 5.0, 3.0, 1.0
KINDS = ("torch", "onnx", "genai", "openvino")
# Typical loss of quality by bits of a weight.
PRICES = {32: 0.0, 16: 0.0005, 8: 0.004, 4: 0.05}


@dataclass
class World:
    """Answer a search from known speeds.

    Args:
        seed: of all random draws.
        candidates: their number, including the baseline.
        noise: standard deviation of a sample's logarithm.
        drift: amplitude of clock speed changes within minutes.
        heat: slowdown of the machine in the first ten minutes.
        load: factor on all times, as by other programs.
        bursts: factor on the times of a candidate on all cores while another program runs, which comes and goes; its cube
            root for a candidate on half of them.
        fixed: minimum and maximum seconds of a candidate's first start beyond the worker's.
        failing: share of the candidates that fail to start.
        stalling: share that hang.
    """

    seed: int
    candidates: int
    noise: float = 0.02
    drift: float = 0.1
    heat: float = 0.0
    load: float = 1.0
    bursts: float = 1.0
    fixed: tuple[float, float] = (2.0, 60.0)
    failing: float = 0.05
    stalling: float = 0.03
    now: float = 0.0
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = draw = np.random.default_rng(self.seed)
        self.speeds, self.perplexity, self.first = {"base": BASE_SPEED}, {"base": 1.0}, {"base": LOAD_S}
        self.known = {"base": Prior("torch", "base", loads=LOAD_S)}
        self.failures, self.stalls = set[str](), set[str]()
        self._loaded = set[str]()
        of_kind = {kind: math.exp(draw.normal(0, 0.35)) for kind in KINDS}
        low, high = map(math.log, self.fixed)
        for number in range(1, self.candidates):
            name, kind = f"c{number}", KINDS[draw.integers(len(KINDS))]
            bits = (32, 16, 8, 8, 4)[draw.integers(5)]
            takes = math.exp(draw.uniform(low, high))
            builds = {f"build {name}": takes} if draw.random() < 0.4 else {}
            loads = LOAD_S if builds else min(takes, 10.0)
            self.known[name] = Prior(kind, f"{kind} {bits} {name}", bits, builds=builds, loads=loads)
            self.first[name] = takes * math.exp(draw.normal(0, 0.4))
            reads, fixed = (1.0, 1.0) if kind == "torch" else (0.8, 0.3)
            step = (0.8 * reads * bits / 32 + 0.2 * fixed) / BASE_SPEED
            self.speeds[name] = of_kind[kind] * math.exp(draw.normal(0, 0.18)) / step
            self.perplexity[name] = 1 + PRICES[bits] * math.exp(draw.normal(0, 0.8))
            chance = draw.random()
            if chance < self.failing:
                self.failures.add(name)
            elif chance < self.failing + self.stalling:
                self.stalls.add(name)

        # From a separate generator, so that a world without bursts stays the same.
        draw = np.random.default_rng([self.seed, 1])
        self.narrow = {name for name in self.speeds if name != "base" and draw.random() < 0.5}
        self._bursts = np.cumsum([draw.uniform(20, 90 if number % 2 else 150) for number in range(60)])

    @property
    def able(self) -> dict[str, float]:
        """Speeds of the candidates that run and keep to the bound."""
        out = self.failures | self.stalls
        return {
            name: speed for name, speed in self.speeds.items() if self.perplexity[name] <= BOUND and name not in out
        }

    def goal(self, seconds: float) -> Goal:
        """Return the goal of the search."""
        names = tuple(self.speeds)
        return Goal(names, "decode_tokens_per_sec", "higher", seconds, BOUND, PARTS, new_tokens=NEW_TOKENS)

    def priors(self, measured: Mapping[str, float]) -> Mapping[str, Prior]:
        """Return the predictions."""
        return self.known

    def measure(self, name: str, seconds: float) -> Trial:
        """Measure a candidate once."""
        self.calls.append(name)
        if name in self._loaded:
            return self._call(name, seconds, 0.0)
        if name in self.stalls:
            return self._late(seconds)
        begins = (START_S + self.first[name]) * self.load
        if name in self.failures and begins <= seconds:
            self.now += begins
            return Trial({}, begins, f"{name} cannot run here")
        trial = self._call(name, seconds, begins)
        if not trial.failure:
            self._loaded.add(name)
        return trial

    def measure_afresh(self, name: str, proven: str, seconds: float) -> Trial:
        """Measure a candidate once, freshly loaded for a proof."""
        fresh = f"{name} afresh for {proven}"
        begins = 0.0 if fresh in self._loaded else LOAD_S * self.load
        self._loaded.add(fresh)
        return self._call(name, math.inf, begins)

    def _call(self, name: str, seconds: float, begins: float) -> Trial:
        slower = self.heat * min(1.0, self.now / 600) + self.drift * math.sin(self.now / 40 + self.seed)
        disturbed = self.bursts > 1 and np.searchsorted(self._bursts, self.now) % 2 == 1
        burst = self.bursts if disturbed else 1.0
        value = self.speeds[name] / self.load / (burst ** (1 / 3) if name in self.narrow else burst)
        value *= math.exp(self.noise * self.random.standard_normal() - slower)
        call_s = max(NEW_TOKENS / value, 0.5)
        took = begins + call_s * (2 if begins else 1)
        if took > seconds:
            return self._late(seconds)
        self.now += took
        values = {"decode_tokens_per_sec": value, "inter_token_latency_ms": 1000 / value}
        return Trial(values, took, repeat_s=call_s, disturbed=bool(disturbed))

    def _late(self, seconds: float) -> Trial:
        self.now += seconds
        return Trial({}, seconds, "not in time", timed_out_in="loading")

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        """Score a part of the text; parts differ, and so do a model's losses on each."""
        took = min(PART_S * self.load, max(seconds, 0.0))
        self.now += took
        if took < PART_S * self.load:
            return PartScore(0.0, 0, took, "not in time")
        of_part = np.random.default_rng([self.seed, part, list(self.speeds).index(name)])
        return PartScore(400 * (2.9 + math.log(self.perplexity[name]) + 0.002 * of_part.standard_normal()), 400, took)

    def dropped(self, name: str) -> None:
        """Ignored."""

    def show(self, state: SearchState) -> None:
        """Ignored."""


@dataclass(frozen=True)
class SearchResult:
    """The end of a search, compared with the truth.

    Attributes:
        ending: `proven`, `unproven` or `none`.
        reached: whether the true best was sampled, so that the budget allowed it.
        right: whether the named candidate is the best or within 5 % of it, and keeps to the bound.
        false: whether a proven claim is false: not better than the baseline, or over the bound.
        seconds: its duration.
    """

    ending: str
    reached: bool
    right: bool
    false: bool
    seconds: float


def search(world: World, seconds: float) -> SearchResult:
    """Search in a world, and compare the end with the truth."""
    tuning = Tuning(world.goal(seconds), world)
    tuning.run()
    able = world.able
    best = max(able, key=able.__getitem__)
    won = tuning.winner
    right = won in able and able[won] >= able[best] / 1.05
    claims = tuning.ending == "proven" and won != "base"
    false = claims and (won not in able or able[won] <= BASE_SPEED)
    return SearchResult(tuning.ending, best == "base" or bool(tuning.race.samples[best]), right, false, world.now)
