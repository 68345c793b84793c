"""Writes fixtures/ of this folder: tokenizers trained here on the text below, what Hugging Face's
tokenizers makes of strings with them, packing plans of TRL, and permutations of torch. By hand:

    python make_fixtures.py

Needs tokenizers 0.23, trl 1.16, datasets 5 and torch 2.13. The tests need none of them.
"""

import itertools
import json
import random
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from trl.data_utils import pack_dataset

FIXTURES = Path(__file__).parent / "fixtures"

CORPUS = [
    "A shard is a part of a tensor that one rank keeps."
    " The ranks gather the shards before a block runs.",
    "The river rises in the hills, and by the time it reaches the town it's wide, slow and brown.",
    "She'll say they've gone; I'd say we're late. It isn't far, and he's sure you'd find it.",
    "def merge(left, right):\n    if not left:\n        return right\n"
    "    return left[:1] + merge(left[1:], right)\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += values[i] * weights[i];\n}\n\n",
    "SELECT name, count(*) FROM jobs WHERE state = 'RUNNING' GROUP BY name;\n",
    "In 1998 there were 12,345 of them; by 2024 only 67 remained (0.54%).",
    "Ein Bär läuft über die Straße. Où est la forêt? El niño comió piñas. Žluťoučký kůň.",
    "Северный ветер и солнце спорили, кто из них сильнее.",
    "北風と太陽が、どちらが強いか言い争っていました。北风和太阳正在争论谁更强。",
    "바람과 해님이 누가 더 힘이 센지 다투고 있었습니다.",
    "كانت ريح الشمال والشمس تتجادلان. רוח הצפון והשמש התווכחו ביניהן.",
    "ลมเหนือกับดวงอาทิตย์ क्षत्रिय हिन्दी 👍🏽 👩‍👩‍👧 🇩🇪 ✅ → ∑ ≠ √2",
]
TRAINING = CORPUS * 4

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


def trained(vocab_size, split):
    """A byte-level BPE whose merges never cross the pieces of `split`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen():
    """NFC, the pattern of Qwen2, special tokens."""
    tokenizer = trained(600, [pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    return tokenizer, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def gpt2():
    """ByteLevel's own pattern, a space put in front, offsets trimmed, tokens that users added."""
    tokenizer = trained(400, [])
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens(
        [AddedToken("<mask>", lstrip=True), AddedToken("<tail>", rstrip=True), "ranks"]
    )
    tokenizer.add_tokens(
        [AddedToken("shard", single_word=True), AddedToken("<mask><tail>", normalized=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=True)
    return tokenizer, {"eos_token": {"content": "<|endoftext|>", "lstrip": False}}


def llama3():
    """A token before each text, merges ignored for whole words, possessive quantifiers."""
    tokenizer = trained(400, [pre_tokenizers.Split(Regex(CL100K_PATTERN), "isolated")])
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    # A word that no merges lead to.
    data["model"]["vocab"]["\u0120ungatherable"] = len(data["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    tokenizer.add_tokens([AddedToken("cafe\u0301", normalized=True)])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True, add_prefix_space=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair=None,
                special_tokens=[("<|begin_of_text|>", begin)],
            ),
        ]
    )
    return tokenizer, {"eos_token": "<|eot_id|>"}


def splits():
    """The other behaviors of Split, and Digits."""
    tokenizer = trained(300, [])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split("-", "removed"),
            pre_tokenizers.Split(Regex(r"[,;]"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[(\[]"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[=+*/]"), "contiguous"),
            pre_tokenizers.Split(Regex(r"\w+|\h+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer, {"eos_token": "</s>"}


EDGES = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    " \n",
    "\n ",
    "a",
    " a",
    "a ",
    "  a  ",
    "\u00a0",
    "\u3000x\u2003y\u0085z\u180ew",
    "'s",
    "'S",
    "it's IT'S It'\u017f",
    "don't can't WON'T",
    "we'll we'LL we'Ll",
    "1",
    "12",
    "123",
    "1234567890",
    "3.14159",
    "\u0664\u00b2\u00bd\u2163",
    "e\u0301",
    "\u00e9",
    "cafe\u0301 caf\u00e9 cafe",
    "A\u030a\u212b\u00c5",
    "q\u0323\u0307 q\u0307\u0323",
    "\u1100\u1161\u11a8 \uac00\u11a8",
    "\u0958\u0928\u093c",
    "\u0344\u0f73",
    "\u2126\u2f81a",
    "\ud55c\uae00",
    "\u6f22\u5b57\u4eee\u540d",
    "\u05d0\u05d1 \u0627\u0644",
    "\u200f\u202bx\u202c",
    "\U0001f44d\U0001f3fd",
    "\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea",
    "\u24b6\U0001f130",
    "\x00\x01\x7f",
    "\ufeffx",
    "\ufffd\uffff\U0010ffff",
    "\u0378\ue000",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_end|>",
    "<|im_",
    "<|endoftext|>",
    "x<|endoftext|>y",
    "<|endoftext|> <|endoftext|>",
    "a <mask> b",
    "a<mask>b",
    "  <mask>  ",
    "<mask><mask>",
    "a <tail>  b",
    "<tail>\n\n<mask>",
    "<mask><tail>",
    "<mask><tai",
    "ranks",
    "franks",
    "shard",
    "shards",
    "a shard.",
    "shard\u0301",
    "reshard shard_ (shard)",
    "<|begin_of_text|>x<|eot_id|>",
    "caf\u00e9s",
    "it is ungatherable here",
    " ungatherable",
    "ungatherable",
    "a-b--c",
    "a,b;;c,",
    "(a)[b](",
    "x==y+++z**",
    "deadbeef 0x1F zz",
    "--",
    ",,,",
    "((",
    "== =",
    "a" * 60,
    "ab" * 60,
    " " * 70 + "x",
    "the" * 40,
    "\n" * 20,
    "=" * 90,
    "\u6f22" * 30,
]
PIECES = [
    "the",
    " river",
    "\n",
    "  ",
    "\t",
    " rank",
    "shard",
    " 42",
    "7",
    "'ll",
    "'T",
    " \u00e9t\u00e9",
    "e\u0301",
    "\u6f22",
    " \u0441\u043e\u043b\u043d\u0446\u0435",
    "\U0001f600",
    "\u0e2a\u0e33",
    ".",
    ", ",
    "!?",
    " {",
    "}\r\n",
    "__init__",
    "http://a.b/c?d=e",
    "\u00a0",
    "\u200d",
    "\u0301",
    "X",
    "Y",
    "Z",
    "<mask>",
    "<|im_end|>",
    "\u05e9\u05c1",
]


def strings():
    rng = random.Random(7)
    texts = list(EDGES) + [
        line for text in CORPUS for line in (text, text[: len(text) // 2].upper())
    ]
    while len(texts) < 320:
        texts.append("".join(rng.choice(PIECES) for _ in range(rng.choice([2, 3, 4, 6, 9]))))
    return texts


def encoded(tokenizer, text):
    encoding = tokenizer.encode(text)
    return {
        "text": text,
        "ids": encoding.ids,
        "offsets": [at for offset in encoding.offsets for at in offset],
        "decoded": tokenizer.decode(encoding.ids, skip_special_tokens=False),
        "decoded_skip_special": tokenizer.decode(encoding.ids, skip_special_tokens=True),
    }


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=True) + "\n")


def write_tokenizer(make, texts):
    tokenizer, config = make()
    folder = FIXTURES / make.__name__
    data = json.loads(tokenizer.to_str())
    if make is llama3:  # files of old write merges as strings
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    write(folder / "tokenizer.json", data)
    write(folder / "tokenizer_config.json", config)
    with (folder / "expected.jsonl").open("w") as file:
        for text in texts:
            row = encoded(tokenizer, text)
            for key in ("decoded", "decoded_skip_special"):
                if row[key] == text:
                    del row[key]
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def plan(lengths, max_length, strategy):
    """Rows of [document, begin, length], read off a column that numbers the tokens."""
    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    owner = [document for document, length in enumerate(lengths) for _ in range(length)]
    spans = zip(offsets, lengths, strict=True)
    columns = {"input_ids": [list(range(at, at + length)) for at, length in spans]}
    packed = pack_dataset(Dataset.from_dict(columns), max_length, strategy)
    rows = []
    for row in packed:
        tokens = row["input_ids"]
        cuts = row.get("seq_lengths")
        if cuts is None:  # wrapped: where the document changes
            edges = [i for i in range(1, len(tokens)) if owner[tokens[i]] != owner[tokens[i - 1]]]
            cuts = [b - a for a, b in itertools.pairwise([0, *edges, len(tokens)])]
        at = 0
        segments = []
        for cut in cuts:
            document = owner[tokens[at]]
            segments += [document, tokens[at] - offsets[document], cut]
            at += cut
        rows.append(segments)
    return rows


def packing():
    rng = random.Random(11)
    cases = []
    for count, longest, max_length in [
        (1, 5, 8),
        (40, 30, 16),
        (60, 64, 64),
        (50, 12, 100),
        (30, 9, 1),
        (1150, 40, 33),
    ]:
        lengths = [rng.randint(0 if i % 7 == 3 else 1, longest) for i in range(count)]
        for strategy in ("bfd", "bfd_split", "wrapped"):
            cases.append(
                {
                    "lengths": lengths,
                    "max_length": max_length,
                    "strategy": strategy,
                    "rows": plan(lengths, max_length, strategy),
                }
            )
    return cases


def permutations():
    cases = []
    for size, seed in [(1, 0), (2, 42), (10, 42), (10, 43), (257, 7), (12, 2**32 + 5)]:
        generator = torch.Generator().manual_seed(seed)
        cases.append({"seed": seed, "order": torch.randperm(size, generator=generator).tolist()})
    return cases


def main():
    texts = strings()
    write_tokenizer(qwen, texts)
    for make in (gpt2, llama3, splits):
        write_tokenizer(make, texts[: len(EDGES)] + texts[-30:])
    write(FIXTURES / "packing.json", packing())
    write(FIXTURES / "permutations.json", permutations())


if __name__ == "__main__":
    main()
