"""Draws the loss of both runs as loss.svg, by hand: the demo needs nothing installed for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from .seen import Worker, step_of

if TYPE_CHECKING:
    from .__main__ import Demo

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 44, 46  # margins
FIRST_STEP = 2  # the steps before it, from random weights, would set the scale
BLUE, GREY, RED, GREEN, INK = "#1565c0", "#9e9e9e", "#c62828", "#2e7d32", "#263238"

Points = list[tuple[float, float]]


class Axes:
    """From steps and losses to places in the picture."""

    def __init__(self, steps: int, low: float, high: float) -> None:
        """`steps` from 0, losses from `low` to `high`."""
        self.steps, self.low, self.high = steps, low, high

    def x(self, step: float) -> float:
        """Place of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, loss: float) -> float:
        """Place of a loss."""
        share = (loss - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def path(self, points: Points) -> str:
        """The points of a line."""
        return " ".join(f"{self.x(step):.1f},{self.y(loss):.1f}" for step, loss in points)


def draw(demo: Demo, twin: Demo) -> Path:
    """Writes the picture; returns its path."""
    assert demo.kill is not None
    lost = demo.workers[demo.kill.worker]
    survivors = [w for w in demo.workers[:3] if w is not lost]
    shared, undisturbed = _shared(survivors[0]), _shared(twin.workers[0])
    least, most = _members(demo.workers)
    every = [loss for points in (shared, undisturbed, least, most) for _, loss in points]
    axes = Axes(demo.steps, math.floor(10 * min(every)) / 10, math.ceil(10 * max(every)) / 10)
    kill_step = float(step_of(survivors[0], demo.kill).get("step", 0))
    joins = [w.of("step")[0]["step"] - 1 for w in demo.workers[3:] if w.of("step")]
    title = "make demo: a worker is killed in the middle of a reduction, another joins"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        _text(WIDTH / 2, 26, title, anchor="middle", size=15),
        *_grid(axes),
        f'<polygon points="{axes.path([*least, *reversed(most)])}" fill="{BLUE}" '
        'fill-opacity="0.15"/>',
        _line(axes.path(undisturbed), GREY, dashes="5 3"),
        _line(axes.path(shared), BLUE),
        *_mark(axes, kill_step, f"worker {lost.number} is killed", RED),
        *[part for step in joins for part in _mark(axes, step, "a new worker joins", GREEN)],
        *_legend(),
        "</svg>",
    ]
    path = demo.out / "loss.svg"
    path.write_text("\n".join(parts) + "\n")
    return path


def _shared(worker: Worker) -> Points:
    points = [(float(r["step"]), float(r["loss"])) for r in worker.of("shared")]
    return [point for point in points if point[0] >= FIRST_STEP]


def _members(workers: list[Worker]) -> tuple[Points, Points]:
    """The least and the greatest training loss of the members, at each step."""
    at: dict[int, list[float]] = {}
    for worker in workers:
        for record in worker.of("step"):
            at.setdefault(int(record["step"]), []).append(float(record["loss"]))
    steps = [step for step in sorted(at) if step >= FIRST_STEP]
    return [(s, min(at[s])) for s in steps], [(s, max(at[s])) for s in steps]


def _grid(axes: Axes) -> list[str]:
    parts = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    tenths = round(10 * (axes.high - axes.low))
    for index in range(0, tenths + 1, max(1, tenths // 5)):
        y = axes.y(axes.low + index / 10)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#eceff1"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{axes.low + index / 10:.1f}", anchor="end"))
    for step in range(0, axes.steps + 1, max(1, axes.steps // 8)):
        x = axes.x(step)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#eceff1"/>')
        parts.append(_text(x, bottom + 16, str(step), anchor="middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 10, "outer steps", anchor="middle"))
    place = f"rotate(-90 16 {HEIGHT / 2:.0f})"
    label = "loss, nats per byte"
    parts.append(
        f'<text x="16" y="{HEIGHT / 2:.0f}" text-anchor="middle" transform="{place}">{label}</text>'
    )
    return parts


def _mark(axes: Axes, step: float, text: str, colour: str) -> list[str]:
    x = axes.x(step)
    line = f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{colour}" stroke-width="1.5"/>'
    return [line, _text(x + 5, TOP + 14, text, colour=colour)]


def _legend() -> list[str]:
    x, y = WIDTH - RIGHT - 312, TOP + 44
    return [
        f'<path d="M{x} {y}h28" stroke="{BLUE}" stroke-width="2.5"/>',
        _text(x + 36, y + 4, "shared model, on text that nobody trains on"),
        f'<path d="M{x} {y + 20}h28" stroke="{GREY}" stroke-width="2.5" stroke-dasharray="5 3"/>',
        _text(x + 36, y + 24, "the same run without faults"),
        f'<rect x="{x}" y="{y + 33}" width="28" height="14" fill="{BLUE}" fill-opacity="0.15"/>',
        _text(x + 36, y + 44, "members, on what they train on"),
    ]


def _line(points: str, colour: str, *, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"{dashed}/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{text}</text>'
    )
