"""Holds tokenizer_dump against Hugging Face's tokenizers on generated strings:

    python compare_tokenizers.py BUILD/tests/tokenizer_dump FOLDER
        [--count 100000] [--seed 0]

A directory's auto.json, if it has one, is what AutoTokenizer makes of the rest. Prints the first
strings on which ids, offsets or decoded text differ; exit status 1 then.
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


def random_text(rng, words, most_parts=60):
    parts = []
    for _ in range(rng.choice([n for n in (1, 2, 3, 5, 8, 20, 60) if n <= most_parts])):
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


def words_of(tokenizer):
    """What random text is made of beside single characters."""
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    pieces = ["the", "The", " and", "return", "  def f(x):\n", "://", "3.14", "na\u00efve"]
    return [*added, *pieces, "e\u0301", "\u2581", "\u2581the", "<0x41>", "    "]


def theirs_of(tokenizer, text):
    encoding = tokenizer.encode(text)
    return [
        encoding.ids,
        [list(offset) for offset in encoding.offsets],
        tokenizer.decode(encoding.ids, skip_special_tokens=False),
        tokenizer.decode(encoding.ids, skip_special_tokens=True),
    ]


def run_dump(dump, folder, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
        file.flush()
        run = subprocess.run([dump, str(folder), file.name], stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def first_difference(mine, theirs):
    """What two lists, or texts, have where they part."""
    same = 0
    while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
        same += 1
    return f"at {same}: {mine[same : same + 5]!a}, not {theirs[same : same + 5]!a}"


def compare(dump, folder, count, seed):
    """How many strings differ."""
    auto = folder / "auto.json"
    tokenizer = Tokenizer.from_file(str(auto if auto.exists() else folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer.encode_special_tokens = config.get("split_special_tokens", False)
    # A thing of transformers, not of tokenizers.
    cleans = config.get("clean_up_tokenization_spaces", False)
    names = ("ids", "offsets") if cleans else ("ids", "offsets", "decoded", "skipped")
    rng = random.Random(seed)
    words = words_of(tokenizer)
    texts = [random_text(rng, words) for _ in range(count)]
    differences = 0
    for text, mine in zip(texts, run_dump(dump, folder, texts), strict=True):
        parts = zip(names, mine, theirs_of(tokenizer, text), strict=False)
        unlike = [f"{name} {first_difference(a, b)}" for name, a, b in parts if a != b]
        differences += bool(unlike)
        if unlike and differences <= 10:
            print(ascii(text), *unlike, sep="\n  ")
    print(f"{folder.name}: {count} strings, {differences} differ", flush=True)
    return differences


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dump")
    arguments.add_argument("folder", type=Path, help="of tokenizer directories")
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    folders = sorted(path.parent for path in options.folder.glob("*/tokenizer_config.json"))
    if not folders:
        sys.exit("no tokenizers there")
    differences = [compare(options.dump, f, options.count, options.seed) for f in folders]
    sys.exit(any(differences))


if __name__ == "__main__":
    main()
