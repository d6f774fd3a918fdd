"""Charts as plain geometry. A template draws them as SVG, so no text of a run becomes markup on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 400.0, 250.0
"""Size of a line chart in units of its view box; a chart of bars is as high as its bars need."""
LEFT, RIGHT, TOP, BOTTOM = 48.0, 14.0, 28.0, 42.0
"""Margins of a line chart."""
DOTTED = 40
"""A line of at most this many points shows them as dots."""
BAR, GAP, LABEL = 13.0, 10.0, 18.0
"""Height of a bar, the space after a group of bars, and the height of a group's label."""
BARS_LEFT, BARS_RIGHT = 6.0, 64.0
"""Margins of a chart of bars; its values stand in the right one."""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line through (step, value) points."""

    name: str
    style: str
    """Name of a colour in the style sheet."""
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: str
    path: str
    dots: list[Dot]
    dotted: bool


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over training steps, ready to be drawn."""

    title: str
    x_label: str
    y_label: str
    summary: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    head: list[str]
    rows: list[list[str]]
    """The numbers of the chart as a table."""
    legend: dict[str, str]
    """Name of a line -> its style."""
    mark: Tick | None = None
    """A vertical line with a label."""
    kind: str = "lines"
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class Bar:
    """A share from 0 to 1, perhaps with an interval; None where there is nothing to measure."""

    name: str
    style: str
    value: float | None
    note: str
    """What the share is of, such as "3/8"."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    label: str
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class DrawnBar:
    style: str
    y: float
    width: float
    text: str
    hint: str
    whisker: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    label: str
    y: float
    bars: list[DrawnBar]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Groups of horizontal bars on a scale from 0 to 100 %, ready to be drawn."""

    title: str
    x_label: str
    summary: str
    groups: list[DrawnGroup]
    legend: dict[str, str]
    """Name of a bar -> its style."""
    x_ticks: list[Tick]
    height: float
    head: list[str]
    rows: list[list[str]]
    kind: str = "bars"
    width: float = WIDTH
    left: float = BARS_LEFT
    thickness: float = BAR - 2
    bottom: float = field(default=0.0)


def number(value: Any) -> float | None:
    """A finite number, also from text such as "0.25"; None for everything else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values, about `count` of them, that cover low to high."""
    high = high if high > low else low + 1.0
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def line_chart(
    title: str, y_label: str, series: Sequence[Series], unit: str = "", mark: tuple[float, str] | None = None
) -> LineChart | None:
    """A chart of lines over training steps; the scale includes 0. None if there is no point to draw."""
    drawn = [line for line in series if line.points]
    if not drawn:
        return None
    xs = sorted({x for line in drawn for x, _ in line.points})
    ys = [y for line in drawn for _, y in line.points]
    x_low, x_high = xs[0], max(xs[-1], xs[0] + 1)
    scale = ticks(min(0.0, *ys), max(0.0, *ys))
    y_low, y_high = scale[0], scale[-1]

    def across(x: float) -> float:
        return round(LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT), 1)

    def down(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM), 1)

    lines = []
    for line in drawn:
        dots = [Dot(across(x), down(y), f"{line.name}, step {x:g}: {_text(y, unit)}") for x, y in line.points]
        path = "M" + " L".join(f"{dot.x} {dot.y}" for dot in dots)
        lines.append(Line(line.name, line.style, path, dots, len(dots) <= DOTTED))
    whole = sorted({round(x) for x in ticks(x_low, x_high)})
    at = {line.name: dict(line.points) for line in drawn}
    rows = [[f"{x:g}", *(_text(at[line.name].get(x), unit) for line in drawn)] for x in xs]
    return LineChart(
        title,
        "optimizer step",
        y_label,
        "; ".join(_summary(line, unit) for line in drawn),
        lines,
        [Tick(across(x), f"{x:g}") for x in whole if x_low <= x <= x_high],
        [Tick(down(y), f"{y:.6g}") for y in scale],
        ["step", *(line.name for line in drawn)],
        rows,
        {line.name: line.style for line in drawn},
        Tick(across(mark[0]), mark[1]) if mark and x_low <= mark[0] <= x_high else None,
    )


def bar_chart(title: str, x_label: str, groups: Sequence[Bars]) -> BarChart | None:
    """A chart of horizontal bars; None if there are no groups."""
    if not any(group.bars for group in groups):
        return None
    span = WIDTH - BARS_LEFT - BARS_RIGHT
    drawn, y = [], 4.0
    for group in groups:
        bars = [_bar(bar, y + LABEL + index * BAR, span, group.label) for index, bar in enumerate(group.bars)]
        drawn.append(DrawnGroup(group.label, y + LABEL - 5, bars))
        y += LABEL + BAR * len(bars) + GAP
    legend = {bar.name: bar.style for group in groups for bar in group.bars}
    rows = [[group.label, *_cells(group, list(legend))] for group in groups]
    scale = [Tick(BARS_LEFT + share * span, f"{100 * share:g}") for share in (0, 0.25, 0.5, 0.75, 1)]
    summary = "; ".join(f"{row[0]}: {', '.join(map(' '.join, zip(legend, row[1:], strict=True)))}" for row in rows)
    return BarChart(title, x_label, summary, drawn, legend, scale, y + 32, ["", *legend], rows, bottom=y)


def _bar(bar: Bar, y: float, span: float, group: str) -> DrawnBar:
    if bar.value is None:
        return DrawnBar(bar.style, y, 0.0, "n.a.", f"{group}, {bar.name}: not measurable ({bar.note})", None)
    text = _text(100 * bar.value, " %")
    whisker = None
    if bar.low is not None and bar.high is not None:
        whisker = (round(BARS_LEFT + bar.low * span, 1), round(BARS_LEFT + bar.high * span, 1))
    return DrawnBar(bar.style, y, round(bar.value * span, 1), text, f"{group}, {bar.name}: {_cell(bar)}", whisker)


def _cells(group: Bars, names: Sequence[str]) -> list[str]:
    cells = {bar.name: _cell(bar) for bar in group.bars}
    return [cells.get(name, "n.a.") for name in names]


def _cell(bar: Bar) -> str:
    if bar.value is None:
        return f"n.a. ({bar.note})"
    interval = "" if bar.low is None or bar.high is None else f" [{100 * bar.low:.1f}, {100 * bar.high:.1f}]"
    return f"{100 * bar.value:.1f} %{interval} ({bar.note})"


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.1f}{unit}" if unit else f"{value:.4g}"


def _summary(line: Series, unit: str) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return f"{line.name}: {_text(start, unit)} at step {first:g}, {_text(end, unit)} at step {last:g}"


def sft_curves(log: Sequence[Mapping[str, Any]]) -> list[LineChart]:
    """Learning curves of SFT from the trainer's log."""
    chart = line_chart("SFT loss", "loss (nats per token)", [_series(log, "loss", "loss", "sft")])
    return [chart] if chart else []


def rl_curves(log: Mapping[str, Any]) -> list[LineChart]:
    """Learning curves of RL from its log: the trainer's rows, and success on the dev queries."""
    rows, best = log.get("steps") or [], number(log.get("best"))
    dev = [{"step": step, **row} for step, row in (log.get("dev") or {}).items()]
    dev.sort(key=lambda row: number(row["step"]) or 0.0)
    mark = (best, f"best step {best:g}") if dev and best is not None else None
    success = [
        _series(rows, "rewards/success/mean", "training rollouts", "train", 100),
        _series(dev, "greedy", "dev, greedy", "rl", 100),
        _series(dev, "sampled", "dev, sampled", "second", 100),
    ]
    counts = [
        _series(rows, "rollout/turns", "turns per rollout", "train"),
        _series(rows, "rollout/tool_calls", "tool calls per rollout", "rl"),
        _series(rows, "rollout/errors", "agent errors per rollout", "second"),
        _series(rows, "rollout/forks", "forks per group", "sft"),
    ]
    equal = _series(rows, "frac_reward_zero_std", "groups of equal rewards", "rl", 100)
    charts = [
        line_chart("Success during RL", "success (%)", success, " %", mark),
        line_chart("RL reward", "reward (mean of a step)", [_series(rows, "reward", "reward", "rl")]),
        line_chart("Entropy of the policy", "entropy (nats per token)", [_series(rows, "entropy", "entropy", "rl")]),
        line_chart("What a rollout holds", "count (mean of a step)", counts),
        line_chart("Groups that teach nothing", "share of the groups (%)", [equal], " %"),
    ]
    return [chart for chart in charts if chart]


def _series(rows: Sequence[Mapping[str, Any]], key: str, name: str, style: str, factor: float = 1.0) -> Series:
    """The points of one key of a log; rows without it, or without a number, are left out."""
    pairs = [(number(row.get("step")), number(row.get(key))) for row in rows]
    return Series(name, style, [(x, y * factor) for x, y in pairs if x is not None and y is not None])
