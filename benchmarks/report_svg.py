"""Plots as inline SVG, without any library: grouped bars, lines, stacked bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import Self

COLOURS = (
    *("#5b6770", "#2a7fba", "#0a4f83", "#e08214", "#a6430b"),
    *("#5aa469", "#7b5ea7", "#c44e7b", "#b3a22f"),
)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 60, 46, 30
TICKS = 4
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # a tick is one of them, times a power of ten
CHAR, LEGEND_ROW = 6.0, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A plot's axes: highest value of y, and of x where x is a number."""

    top: float
    right: float = 1.0

    @classmethod
    def around(cls, ys: Sequence[float], xs: Sequence[float] = ()) -> Self:
        """Round numbers at the ticks."""
        return cls(top=rounded(max(ys, default=1.0)), right=rounded(max(xs, default=1.0)))

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / (self.top or 1) * (HEIGHT - BOTTOM - TOP)

    def x(self, value: float) -> float:
        return LEFT + value / (self.right or 1) * (WIDTH - LEFT - 10)


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float | None]]) -> str:
    """groups: {"C1": {"AR": 16.0, "Domino b8": 20.1}}; a missing value has no bar."""
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    values = [v for group in groups.values() for v in group.values() if v is not None]
    frame = Frame.around(values)
    room = (WIDTH - LEFT - 10) / max(len(groups), 1)
    width = 0.8 * room / max(len(names), 1)
    parts = axes(title, unit, frame)
    for place, (group, found) in enumerate(groups.items()):
        start = LEFT + place * room + 0.1 * room
        parts.append(text(start + 0.4 * room, HEIGHT - BOTTOM + 14, group, "middle"))
        for number, name in enumerate(names):
            value = found.get(name)
            if value is not None:
                parts.append(bar(start + number * width, width, frame, 0, value, number, name))
    return svg(parts, names)


def lines(
    title: str, x_unit: str, y_unit: str, curves: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """curves: {"AR": [(x, y), ...]} with x in order."""
    points = [point for curve in curves.values() for point in curve]
    frame = Frame.around([y for _, y in points], [x for x, _ in points])
    parts = axes(title, y_unit, frame)
    for tick in range(TICKS + 1):
        value = frame.right * tick / TICKS
        parts.append(text(frame.x(value), HEIGHT - BOTTOM + 14, shown(value), "middle"))
    parts.append(text(WIDTH - 10, HEIGHT - BOTTOM + 28, x_unit, "end"))
    for number, (name, curve) in enumerate(curves.items()):
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in curve)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(name)}</title></polyline>"
        )
    return svg(parts, list(curves))


def stacks(title: str, unit: str, columns: Mapping[str, Mapping[str, float]]) -> str:
    """columns: {"AR": {"verify": 40.1, "hop": 0.3}}, stacked from the first part up."""
    names = list(dict.fromkeys(name for parts in columns.values() for name in parts))
    frame = Frame.around([sum(parts.values()) for parts in columns.values()])
    room = (WIDTH - LEFT - 10) / max(len(columns), 1)
    parts = axes(title, unit, frame)
    for place, (column, found) in enumerate(columns.items()):
        start, base = LEFT + place * room + 0.2 * room, 0.0
        parts.append(text(start + 0.3 * room, HEIGHT - BOTTOM + 14, column, "middle"))
        for number, name in enumerate(names):
            value = found.get(name, 0.0)
            parts.append(bar(start, 0.6 * room, frame, base, value, number, name))
            base += value
    return svg(parts, names)


def bar(
    x: float, width: float, frame: Frame, base: float, value: float, number: int, name: str
) -> str:
    top = frame.y(base + value)
    height = frame.y(base) - top
    return (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{max(width - 1, 1):.1f}" height="{height:.1f}" '
        f'fill="{COLOURS[number % len(COLOURS)]}">'
        f"<title>{escape(name)}: {value:.3f}</title></rect>"
    )


def axes(title: str, unit: str, frame: Frame) -> list[str]:
    parts = [text(LEFT, 16, f"{title} ({unit})", "start", bold=True)]
    for tick in range(TICKS + 1):
        value = frame.top * tick / TICKS
        y = frame.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>')
        parts.append(text(LEFT - 6, y + 4, shown(value), "end"))
    return parts


def svg(parts: Sequence[str], names: Sequence[str]) -> str:
    """The plot with its legend below, in as many rows as the names need."""
    entries, x, row = [], float(LEFT), 0
    for place, name in enumerate(names):
        room = 30 + CHAR * len(name)
        if x + room > WIDTH and x > LEFT:
            x, row = float(LEFT), row + 1
        y = HEIGHT - 16 + row * LEGEND_ROW
        colour = COLOURS[place % len(COLOURS)]
        entries.append(f'<rect x="{x:.0f}" y="{y}" width="10" height="10" fill="{colour}"/>')
        entries.append(text(x + 14, y + 9, name, "start"))
        x += room
    box = f"0 0 {WIDTH} {HEIGHT + row * LEGEND_ROW}"
    return f'<svg viewBox="{box}" role="img">{"".join([*parts, *entries])}</svg>'


def rounded(value: float) -> float:
    """The smallest axis of TICKS round steps that holds the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value / TICKS))
    return TICKS * power * next(step for step in STEPS if step * power * TICKS >= value * 0.9999)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def text(x: float, y: float, value: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(value)}</text>'
