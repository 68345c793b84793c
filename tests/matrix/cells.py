"""Which combinations are run."""

import itertools
import random
from dataclasses import dataclass

from methods import METHODS, OFTEN, Method
from techniques import MESH_WORLDS, MODELS, TECHNIQUES, WORLDS

MESHES = [technique for technique in TECHNIQUES if technique.axis == "mesh"]
SAMPLE_SIZE = 200
OTHERS = [technique for technique in TECHNIQUES if technique.axis != "mesh"]


@dataclass(frozen=True)
class Cell:
    method: Method
    model: str
    world: int
    techniques: tuple  # in the order of TECHNIQUES

    def __str__(self):
        names = " + ".join(technique.name for technique in self.techniques)
        return f"{self.method.name}, {self.model}, world {self.world}: {names or 'plain'}"


def ordered(techniques):
    return tuple(sorted(techniques, key=TECHNIQUES.index))


def worlds_of(techniques):
    """The world sizes that all of them are run at: of an axis of the mesh its own."""
    return next((t.worlds for t in techniques if t.worlds != WORLDS), WORLDS)


def pairs(seed):
    """Every technique with every method that has it on every mesh, and every two techniques of
    different axes on one rank and on several; models, and what else is not said, by turns."""
    source = random.Random(seed)

    def cell(method, techniques, world):
        return Cell(method, source.choice(MODELS), world, ordered(techniques))

    cells = []
    for method, technique, mesh in itertools.product(OFTEN, [None, *OTHERS], [None, *MESHES]):
        techniques = [each for each in (technique, mesh) if each]
        if all(method.takes(each) for each in techniques):
            worlds = [source.choice(mesh.worlds)] if mesh else WORLDS
            cells += [cell(method, techniques, world) for world in worlds]
    for two in itertools.combinations(OTHERS, 2):
        takers = [method for method in OFTEN if all(map(method.takes, two))]
        if two[0].axis == two[1].axis or not takers:
            continue
        mesh = source.choice([None, *MESHES])
        beside = [mesh] if mesh else []
        cells.append(cell(source.choice(takers), two, 1))
        cells.append(cell(source.choice(takers), [*two, *beside], max(worlds_of(beside))))
    return cells


def draw(random_source, among, wanted=()):
    """(a method, techniques): `wanted`, one `among` the methods that takes all of them where it
    names none, and about half of the other axes."""
    techniques = [part for part in wanted if not isinstance(part, Method)]
    methods = [part for part in wanted if isinstance(part, Method)] or [
        method for method in among if all(map(method.takes, techniques))
    ]
    method = random_source.choice(methods)
    chosen = {technique.axis: technique for technique in techniques}
    for axis in sorted({technique.axis for technique in TECHNIQUES} - chosen.keys()):
        takes = [t for t in TECHNIQUES if t.axis == axis and method.takes(t)]
        if takes and random_source.random() < 0.5:
            chosen[axis] = random_source.choice(takes)
    return method, ordered(chosen.values())


def sample(count, seed):
    """Combinations of any number of techniques."""
    source = random.Random(seed)
    cells = []
    for _ in range(count):
        method, techniques = draw(source, OFTEN)
        worlds = worlds_of(techniques)
        cells.append(Cell(method, source.choice(MODELS), source.choice(worlds), techniques))
    return cells


def to_meet():
    """Every two of what a cell is made of that can be in one cell."""
    of_techniques = {
        frozenset(pair)
        for pair in itertools.combinations(TECHNIQUES, 2)
        if pair[0].axis != pair[1].axis and any(all(map(m.takes, pair)) for m in METHODS)
    }
    of_methods = {frozenset((m, t)) for m in METHODS for t in TECHNIQUES if m.takes(t)}
    of_places = {frozenset((t, place)) for t in TECHNIQUES for place in MODELS + t.worlds} | {
        frozenset((m, place)) for m in METHODS for place in MODELS + WORLDS + MESH_WORLDS
    }
    return of_techniques | of_methods | of_places


def cover(seed, tries=40):
    """Few combinations in which every two of technique, method, model and world size meet."""
    source = random.Random(seed)
    missing = to_meet()
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
    known = [*METHODS, *TECHNIQUES]
    return sorted(
        (known.index(part), "") if part in known else (len(known), str(part)) for part in pair
    )


def candidate(source, pair):
    models = [part for part in pair if part in MODELS]
    worlds = [part for part in pair if part in WORLDS + MESH_WORLDS]
    method, techniques = draw(
        source, METHODS, [part for part in pair if part not in models + worlds]
    )
    if worlds and worlds[0] not in worlds_of(techniques):
        mesh = [source.choice(MESHES)] if worlds[0] in MESH_WORLDS else []
        techniques = ordered([t for t in techniques if t.axis != "mesh"] + mesh)
    return Cell(
        method,
        models[0] if models else source.choice(MODELS),
        worlds[0] if worlds else source.choice(worlds_of(techniques)),
        techniques,
    )


def meetings(cell):
    parts = (cell.method, *cell.techniques, cell.model, cell.world)
    return {frozenset(pair) for pair in itertools.combinations(parts, 2)}


def refusals():
    """A cell of each method and technique that do not go together."""
    return [
        Cell(method, MODELS[0], 1, (technique,))
        for method in METHODS
        for technique in TECHNIQUES
        if method.refusal(technique)
    ]


def cells_named(name, seed):
    """cover, pairs or all of them; with what is refused."""
    return SETS[name](seed) + refusals()


SETS = {
    "cover": cover,
    "pairs": pairs,
    "all": lambda seed: pairs(seed) + sample(SAMPLE_SIZE, seed) + cover(seed),
}
