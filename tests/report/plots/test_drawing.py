"""Labels of a plot: where they are placed."""

from __future__ import annotations

import itertools
import random

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from llmtrack.report.plots.charts import canvas
from llmtrack.report.plots.drawing import label_points


def boxes(figure, labels):
    renderer = FigureCanvasAgg(figure).get_renderer()
    return [label.get_window_extent(renderer) for label in labels]


@pytest.mark.slow(1)
@pytest.mark.parametrize("seed", range(4))
def test_labels_do_not_overlap_and_stay_inside(seed):
    generator = random.Random(seed)
    crowd = [(generator.gauss(20, 4), generator.gauss(20, 1)) for _ in range(14)] + [(60, 40), (61, 40)]
    figure, axes = canvas("t", "x", "y")
    xs, ys = zip(*crowd, strict=True)
    axes.scatter(xs, ys)
    axes.margins(x=0.22, y=0.18)
    drawn = boxes(figure, label_points(figure, axes, xs, ys, [f"scenario_{n}" for n in range(16)]))
    room = axes.get_window_extent()
    for one, other in itertools.combinations(drawn, 2):
        assert not one.overlaps(other)
    for box in drawn:
        assert room.x0 <= box.x0
        assert box.x1 <= room.x1
        assert not any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for x, y in axes.transData.transform(crowd))
