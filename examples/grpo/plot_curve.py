"""Draws how the mean reward of a run went: plot_curve.py EVENTS.jsonl CURVE.svg."""

import json
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 56, 20, 20, 44
SMOOTHED = 10  # steps that the line is the mean of


def rewards_of(path: pathlib.Path) -> list[tuple[int, float]]:
    points = []
    for line in path.read_text().splitlines():
        step = json.loads(line).get("step", {})
        if "reward" in step.get("metrics", {}):
            points.append((int(step["step"]), float(step["metrics"]["reward"])))
    return points


def smoothed(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    out = []
    for i, (step, _) in enumerate(points):
        window = [reward for _, reward in points[max(0, i + 1 - SMOOTHED) : i + 1]]
        out.append((step, sum(window) / len(window)))
    return out


def draw(points: list[tuple[int, float]]) -> str:
    last = points[-1][0]

    def place(step: float, reward: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / last
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (1 - reward)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        x, y = place(0, tenth / 10)
        lines.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10}</text>')
    for quarter in range(5):
        x, y = place(last * quarter / 4, 0)
        label = round(last * quarter / 4)
        lines.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{label}</text>')
    x, y = place(last / 2, 0)
    lines.append(f'<text x="{x:.1f}" y="{y + 36:.1f}" text-anchor="middle">step</text>')
    lines.append(f'<text x="{LEFT}" y="{TOP - 6}">mean reward</text>')
    for step, reward in points:
        x, y = place(step, reward)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" fill="#56b4e9"/>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in smoothed(points)))
    lines.append(f'<polyline points="{path}" fill="none" stroke="#0072b2" stroke-width="2"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    points = rewards_of(pathlib.Path(sys.argv[1]))
    pathlib.Path(sys.argv[2]).write_text(draw(points))
    print(f"mean reward {points[0][1]:.3f} at step {points[0][0]}, {points[-1][1]:.3f} at the last")


if __name__ == "__main__":
    main()
