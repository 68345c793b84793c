"""Holds tokenizer_dump against Hugging Face's tokenizers on generated strings. Run by hand:

    python compare_tokenizers.py BUILD/tests/tokenizer_dump TOKENIZER_DIRECTORY
        [--count 100000] [--seed 0]

Needs `tokenizers`. Prints the first strings on which ids, offsets or decoded text differ; exit
status 1 then.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    " ",
    " \t\n\r\x0b\x0c",
    "\u0085\u00a0\u1680\u180e\u2000\u2003\u200a\u200b\u200c\u200d"
    "\u2028\u2029\u202f\u205f\u3000\ufeff",
    "'\"`’",
    ".,;:!?-_()[]{}<>|/\\@#$%^&*+=~",
    "\u0300\u0301\u0308\u0323\u0327\u0328\u0345\u0653\u093c\u0f71\u0f72\u3099\u309a",
    "éèêëñçüöäåøßſKÅΩﬁﬆŉǆ",
    "абвгдеёжзийклмнопрстуфхцчшщъыьэюяЁЙ",
    "אבגדהוזחטיכלמנסעפצקרשתءآأؤإئابةتثجحخ",
    "가각한글\u1100\u1161\u11a8\u1112\u11ab",
    "漢字仮名交じり文、。「」豈更車\u2f800",
    "ข้ามคำกัน\u0e33\u0eb3",
    "👍🏽👩‍👩‍👧‍👦🇩🇪🏳️‍🌈😀ⒶⓏ🄰🅰",
    "²³¼½ⅣⅫ٣४௧〇①㊿",
    "\x00\x01\x1f\x7f\u00ad\u0378\ue000\uffff\U0010ffff",
]
CONTRACTIONS = ["'s", "'S", "'t", "'RE", "'ve", "'m", "'LL", "'d", "'ſ", "’s"]


def assigned(rng):
    """Some character that Python's tables know: PCRE2 and Oniguruma differ on newer ones."""
    while True:
        character = chr(rng.choice([rng.randrange(0x80, 0xD800), rng.randrange(0xE000, 0x110000)]))
        if unicodedata.category(character) != "Cn":
            return character


def random_text(rng, words):
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 60])):
        kind = rng.random()
        if kind < 0.15:
            parts.append(rng.choice(words))
        elif kind < 0.22:
            parts.append(rng.choice(CONTRACTIONS))
        elif kind < 0.27:
            parts.append(assigned(rng))
        else:
            alphabet = rng.choice(ALPHABETS)
            parts.append(
                "".join(rng.choice(alphabet) for _ in range(rng.choice([1, 1, 2, 3, 6, 12])))
            )
    return "".join(parts)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dump")
    arguments.add_argument("tokenizer", type=Path)
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()

    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    words = [
        *added,
        "the",
        "The",
        " and",
        "return",
        "  def f(x):\n",
        "http://",
        "3.14",
        "naïve",
        "e\u0301",
    ]
    rng = random.Random(options.seed)
    texts = [random_text(rng, words) for _ in range(options.count)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
        file.flush()
        run = subprocess.run(
            [options.dump, str(options.tokenizer), file.name], stdout=subprocess.PIPE, check=True
        )
    ours = [json.loads(line) for line in run.stdout.splitlines()]
    names = ("ids", "offsets", "decoded", "skipped")
    differences = 0
    for text, mine in zip(texts, ours, strict=True):
        encoding = tokenizer.encode(text)
        theirs = [
            encoding.ids,
            [list(offset) for offset in encoding.offsets],
            tokenizer.decode(encoding.ids, skip_special_tokens=False),
            tokenizer.decode(encoding.ids, skip_special_tokens=True),
        ]
        if mine != theirs:
            differences += 1
            if differences <= 10:
                what = [n for n, a, b in zip(names, mine, theirs, strict=True) if a != b]
                print(ascii(text), what, mine[:2], theirs[:2], sep="\n  ")
    print(f"{len(texts)} strings, {differences} differ")
    sys.exit(differences > 0)


if __name__ == "__main__":
    main()
