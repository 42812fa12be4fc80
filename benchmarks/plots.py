"""Draws the tables of benchmarks/results as docs/images/*.svg: run it after scripts/bench.

python benchmarks/plots.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from all_reduce import size_text

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 66, 54  # margins
INK, RULE = "#263238", "#eceff1"
COLOURS = ["#1565c0", "#90caf9", "#9e9e9e"]
STEPS = 5  # of the scale

Row = dict[str, str]


class Chart(NamedTuple):
    """Bars in groups: `values` has, for each group, one number of each series, None: no bar."""

    title: str
    unit: str
    groups: list[str]
    series: list[str]
    values: list[list[float | None]]


def rows_of(text: str) -> list[Row]:
    """The rows of the table in a file of results, by the names of its columns."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def filled(title: str, rows: list[Row], group_of: Callable[[Row], str]) -> Chart:
    """Which part of a line all-reduces fill (long_links)."""
    series = {"pccl": "pccl", "pccl-no-bbr": "pccl without BBR", "gloo": "gloo"}
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        of = found.setdefault(group_of(row), {})
        of[row["backend"]] = float(row["of the line"].rstrip(" %"))
    values = [[by.get(backend) for backend in series] for by in found.values()]
    return Chart(title, "%", list(found), list(series.values()), values)


def long_lines(rows: list[Row]) -> Chart:
    """Lines of several rates (long_links)."""

    def group_of(row: Row) -> str:
        rate = float(row["line, Mbit/s"])
        line = f"{rate / 1000:g} Gbit/s" if rate >= 1000 else f"{rate:g} Mbit/s"
        return f"{line}\n{row['RTT, ms']} ms, {row['loss, %']} %"

    title = "All-reduce of two members: part of the line that it fills (round trip, loss)"
    return filled(title, rows, group_of)


def grid(rows: list[Row]) -> Chart:
    """Lines of 1 Gbit/s with all round trips and losses (long_links)."""
    rows = [row for row in rows if row["ranks"] == "2" and row["hosts"] == "reno"]
    title = "All-reduce of two members: part of 1 Gbit/s that it fills, by round trip and loss"
    return filled(title, rows, lambda row: f"{row['RTT, ms']} ms\n{row['loss, %']} %")


def few_steps(rows: list[Row]) -> Chart:
    """Times of all-reduces between distant members (few_steps)."""
    rows = [row for row in rows if row["ranks"] != "2"]
    groups = [f"{size_text(int(row['bytes']))}\n{row['ranks']} members" for row in rows]
    columns = ["pccl", "by size", "gloo"]
    values: list[list[float | None]] = [[float(row[c]) for c in columns] for row in rows]
    title = f"All-reduce of members with round trips of {rows[0]['RTT, ms']} ms: time of a call"
    return Chart(title, "ms", groups, ["pccl", "pccl, by size alone", "gloo"], values)


PLOTS: dict[str, tuple[str, Callable[[list[Row]], Chart]]] = {
    "long-lines": ("long_links", long_lines),
    "grid": ("grid", grid),
    "few-steps": ("few_steps", few_steps),
}


def svg(chart: Chart) -> str:
    """The picture."""
    most = max(value for group in chart.values for value in group if value is not None)
    top = next(s for s in (100, 200, 500, 700, 1000, 2000, 5000) if s >= most)
    plot_height = HEIGHT - TOP - BOTTOM
    group_width = (WIDTH - LEFT - RIGHT) / len(chart.groups)
    bar_width = 0.8 * group_width / len(chart.series)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - plot_height * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif" '
        f'font-size="11" fill="{INK}">',
        f"<title>{chart.title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        text(WIDTH / 2, 24, chart.title, size=14),
    ]
    for step in range(STEPS + 1):
        value = top * step / STEPS
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{RULE}"/>')
        unit = f" {chart.unit}" if step == STEPS else ""
        parts.append(text(LEFT - 6, y(value) + 4, f"{value:g}{unit}", anchor="end"))
    for s, name in enumerate(chart.series):
        x = LEFT + 170 * s
        parts.append(f'<rect x="{x}" y="38" width="11" height="11" fill="{COLOURS[s]}"/>')
        parts.append(text(x + 16, 48, name, anchor="start"))
    for g, (group, values) in enumerate(zip(chart.groups, chart.values, strict=True)):
        begin = LEFT + group_width * g
        for s, value in enumerate(values):
            if value is None:
                continue
            x = begin + 0.1 * group_width + bar_width * s
            parts.append(
                f'<rect x="{x:.1f}" y="{y(value):.1f}" width="{bar_width - 1:.1f}" '
                f'height="{HEIGHT - BOTTOM - y(value):.1f}" fill="{COLOURS[s]}"/>'
            )
            parts.append(text(x + bar_width / 2, y(value) - 3, f"{value:.0f}", size=9))
        for i, line in enumerate(group.splitlines()):
            parts.append(text(begin + group_width / 2, HEIGHT - BOTTOM + 18 + 15 * i, line))
    return "\n".join([*parts, "</svg>"]) + "\n"


def text(x: float, y: float, what: str, *, anchor: str = "middle", size: int = 11) -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{what}</text>'


def drawn() -> dict[Path, str]:
    """Each picture, by its path."""
    found = {}
    for name, (results, chart) in PLOTS.items():
        table = (ROOT / "benchmarks" / "results" / f"{results}.md").read_text()
        found[ROOT / "docs" / "images" / f"{name}.svg"] = svg(chart(rows_of(table)))
    return found


def main() -> None:
    """Draws them all."""
    formatter = argparse.RawTextHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=formatter).parse_args()
    for path, picture in drawn().items():
        path.write_text(picture)
        print(f"drawn: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
