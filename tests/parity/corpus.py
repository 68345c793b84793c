"""Documents of the parity cases: sentences from templates, with numbers, code and many scripts."""

from bpe import EOS, PAD, TURN
from draws import Draws

SUBJECTS = [
    "the scheduler",
    "a worker",
    "this ledger",
    "my sister's boat",
    "the old gardener",
    "Ms Okonkwo",
    "every third tile",
    "the night train",
    "a careful reader",
    "the glacier",
    "our committee",
]
VERBS = [
    "counts",
    "repairs",
    "doesn't move",
    "carries",
    "forgets",
    "paints",
    "measures",
    "can't find",
    "has sold",
    "returns",
    "splits",
    "folds",
]
OBJECTS = [
    "blue bricks",
    "sharded gradients",
    "sacks of rice",
    "unread letters",
    "broken clocks",
    "stairs",
    "tokens",
    "mountain goats",
    "pages of notes",
    "lemons",
    "shadows",
    "copper wires",
]
PLACES = [
    "in Zürich",
    "under the bridge",
    "near the naïve café",
    "at São Paulo's port",
    "in Łódź",
    "by the river",
    "on platform nine",
    "between two barriers",
    "behind the smörgåsbord",
]
ENDINGS = [".", ".", ".", "!", "?", "...", ";", " --", ", I'll say."]
FOREIGN = [
    "Καλημέρα, κόσμε.",
    "Поезд уходит в полночь.",
    "图书馆今天不开门。",
    "猫は窓辺で眠る。",
    "오늘은 비가 온다.",
    "שלום לכולם",
    "مرحبا بالعالم",
    "cafe\u0301 au lait",
    "🌊🧭 ahoy 🧭",
    "½ + ¼ = ¾",
    "a\u00a0b\u2009c",
]


def number(draws):
    kind = draws.below(4)
    if kind == 0:
        return str(draws.below(10))
    if kind == 1:
        return str(draws.below(100000))
    if kind == 2:
        return f"{draws.below(1000)}.{draws.below(100):02d}"
    return f"-{draws.below(50)}e{draws.below(9)}"


def code_line(draws):
    name = draws.pick(["total", "rank", "row_sum", "x", "cu_seqlens"])
    kind = draws.below(4)
    if kind == 0:
        return f"{name}_{draws.below(9)} = add({name}, {number(draws)})\n"
    if kind == 1:
        return f"\tif ({name} >= {number(draws)}) {{ return {name}[{draws.below(64)}]; }}\n"
    if kind == 2:
        return (
            f"for (int {name} = 0; {name} < {number(draws)}; ++{name})  // {draws.pick(OBJECTS)}\n"
        )
    return f'    assert {name} != {number(draws)}, "{draws.pick(PLACES)}"\n\n'


def sentence(draws):
    kind = draws.below(10)
    if kind == 0:
        return code_line(draws)
    if kind == 1:
        return draws.pick(FOREIGN) + draws.pick([" ", "\n", "  "])
    words = f"{draws.pick(SUBJECTS)} {draws.pick(VERBS)} {number(draws)} {draws.pick(OBJECTS)}"
    if draws.below(2):
        words += " " + draws.pick(PLACES)
    return (
        words[0].upper()
        + words[1:]
        + draws.pick(ENDINGS)
        + draws.pick([" ", " ", " ", "\n", "\r\n", "   "])
    )


def document(draws, most_sentences):
    return "".join(sentence(draws) for _ in range(1 + draws.below(most_sentences)))


def documents(seed, count, most_sentences):
    draws = Draws(seed)
    return [document(draws, most_sentences) for _ in range(count)]


def make_texts():
    mixed = documents(1, 168, 9)
    mixed[3] = ""  # one token, EOS, and no label
    mixed[8] = "x"
    mixed[13] = mixed[13] + EOS  # gets no second EOS
    mixed[17] = f"one{EOS}two {TURN}\n{TURN} three"
    # More than a thousand: TRL packs each thousand documents by themselves.
    return {
        "mixed": mixed,
        "short": documents(2, 1130, 2),
        "few": documents(3, 31, 5),
        "eval": documents(4, 20, 6),
        "pads": [text.replace(" ", PAD, i % 3) for i, text in enumerate(documents(5, 60, 4))],
    }
