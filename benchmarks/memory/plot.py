"""Stacked horizontal bars as SVG."""

import dataclasses
from xml.sax.saxutils import escape

# Okabe and Ito's colours, which people who see few colours can tell apart.
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#f0e442", "#e69f00", "#d55e00", "#999999")
WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 860, 18, 8, 250, 70, 34


@dataclasses.dataclass
class Bar:
    name: str
    parts: dict[str, float]  # every bar has the same parts, in the same order


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}"><title>{escape(title)}</title></rect>'


def legend(names: list[str]) -> list[str]:
    lines, x = [], float(LEFT)
    for name, colour in zip(names, COLOURS, strict=False):
        lines += [box(x, 10, 12, 12, colour, name), text(x + 16, 20, name)]
        x += 30 + 6.4 * len(name)
    return lines


def draw_bars(bars: list[Bar], unit: str) -> str:
    most = max(sum(bar.parts.values()) for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + len(bars) * (BAR + GAP) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *legend(list(bars[0].parts)),
    ]
    for i, bar in enumerate(bars):
        x, y = float(LEFT), TOP + i * (BAR + GAP)
        lines.append(text(LEFT - 8, y + 13, bar.name, "end"))
        for (name, size), colour in zip(bar.parts.items(), COLOURS, strict=False):
            lines.append(box(x, y, size * scale, BAR, colour, f"{name}: {size:.1f} {unit}"))
            x += size * scale
        lines.append(text(x + 6, y + 13, f"{sum(bar.parts.values()):.0f} {unit}"))
    return "\n".join([*lines, "</svg>"]) + "\n"
