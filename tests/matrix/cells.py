"""Which combinations are run."""

import itertools
import random
from dataclasses import dataclass

from techniques import MODELS, TECHNIQUES, WORLDS


@dataclass(frozen=True)
class Cell:
    model: str
    world: int
    techniques: tuple  # in the order of TECHNIQUES

    def __str__(self):
        names = " + ".join(technique.name for technique in self.techniques)
        return f"{self.model}, world {self.world}: {names or 'plain'}"


def ordered(techniques):
    return tuple(sorted(techniques, key=TECHNIQUES.index))


def pairs():
    """Every technique alone, and every two of different axes, on each model and world size."""
    alone = [(technique,) for technique in TECHNIQUES]
    together = [
        pair for pair in itertools.combinations(TECHNIQUES, 2) if pair[0].axis != pair[1].axis
    ]
    return [
        Cell(model, world, ordered(techniques))
        for techniques in alone + together
        for model in MODELS
        for world in WORLDS
    ]


def draw(random_source, wanted=()):
    """A combination that holds `wanted` and about half of the other axes."""
    chosen = {technique.axis: technique for technique in wanted}
    axes = sorted({technique.axis for technique in TECHNIQUES} - chosen.keys())
    for axis in axes:
        if random_source.random() < 0.5:
            chosen[axis] = random_source.choice([t for t in TECHNIQUES if t.axis == axis])
    return ordered(chosen.values())


def sample(count, seed):
    """Combinations of any number of techniques."""
    source = random.Random(seed)
    return [Cell(source.choice(MODELS), source.choice(WORLDS), draw(source)) for _ in range(count)]


def cover(seed, tries=40):
    """Few combinations in which every two techniques of different axes meet once at least, and each
    meets every model and world size."""
    source = random.Random(seed)
    missing = {
        frozenset(pair)
        for pair in itertools.combinations(TECHNIQUES, 2)
        if pair[0].axis != pair[1].axis
    } | {frozenset((t, place)) for t in TECHNIQUES for place in MODELS + WORLDS}
    cells = []
    while missing:
        # Sets have no order that is the same in the next process.
        first = min(missing, key=rank_of)
        best = max(
            (candidate(source, first) for _ in range(tries)),
            key=lambda cell: len(missing & meetings(cell)),
        )
        missing -= meetings(best)
        cells.append(best)
    return cells


def rank_of(pair):
    return sorted(
        (TECHNIQUES.index(part), "") if part in TECHNIQUES else (len(TECHNIQUES), str(part))
        for part in pair
    )


def candidate(source, pair):
    models = [part for part in pair if part in MODELS]
    worlds = [part for part in pair if part in WORLDS]
    techniques = [part for part in pair if part not in MODELS + WORLDS]
    return Cell(
        models[0] if models else source.choice(MODELS),
        worlds[0] if worlds else source.choice(WORLDS),
        draw(source, techniques),
    )


def meetings(cell):
    parts = (*cell.techniques, cell.model, cell.world)
    return {frozenset(pair) for pair in itertools.combinations(parts, 2)}
