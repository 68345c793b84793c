"""Which combinations are run."""

import itertools
import random
from dataclasses import dataclass

from techniques import MESH_WORLDS, MODELS, TECHNIQUES, WORLDS


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


def worlds_of(techniques):
    """The world sizes that all of them are run at: of an axis of the mesh its own."""
    return next((t.worlds for t in techniques if t.worlds != WORLDS), WORLDS)


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
        for world in worlds_of(techniques)
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
    cells = []
    for _ in range(count):
        techniques = draw(source)
        cells.append(Cell(source.choice(MODELS), source.choice(worlds_of(techniques)), techniques))
    return cells


def cover(seed, tries=40):
    """Few combinations in which every two techniques of different axes meet once at least, and each
    meets every model and world size."""
    source = random.Random(seed)
    missing = {
        frozenset(pair)
        for pair in itertools.combinations(TECHNIQUES, 2)
        if pair[0].axis != pair[1].axis
    } | {frozenset((t, place)) for t in TECHNIQUES for place in MODELS + t.worlds}
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
    worlds = [part for part in pair if part in WORLDS + MESH_WORLDS]
    techniques = draw(source, [part for part in pair if part not in MODELS + WORLDS + MESH_WORLDS])
    if worlds and worlds[0] not in worlds_of(techniques):
        techniques = tuple(t for t in techniques if worlds[0] in t.worlds)
    return Cell(
        models[0] if models else source.choice(MODELS),
        worlds[0] if worlds else source.choice(worlds_of(techniques)),
        techniques,
    )


def meetings(cell):
    parts = (*cell.techniques, cell.model, cell.world)
    return {frozenset(pair) for pair in itertools.combinations(parts, 2)}
