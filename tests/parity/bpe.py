"""A byte-level BPE tokenizer.json of 771 tokens, learned from given texts."""

import collections
import itertools
import re

from files import write_json

NUM_MERGES = 512
PAD, EOS, TURN = "<|pad|>", "<|end|>", "<|turn|>"
SPECIAL_TOKENS = [PAD, EOS, TURN]
VOCAB_SIZE = 256 + NUM_MERGES + len(SPECIAL_TOKENS)
# Contractions, words with what precedes them, up to three digits, punctuation, line ends, spaces.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)
    ]


def learn_merges(texts, letters):
    """Byte-pair encoding. Where words end matters little here, so `re` stands in for PATTERN."""
    pieces = collections.Counter(
        piece for text in texts for piece in re.findall(r" ?[^\W\d_]+|\d|\s+|[^\w\s]+", text)
    )
    words = [
        ([letters[byte] for byte in piece.encode()], count)
        for piece, count in sorted(pieces.items())
    ]
    merges = []
    while len(merges) < NUM_MERGES:
        pairs = collections.Counter()
        for symbols, count in words:
            for pair in itertools.pairwise(symbols):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for symbols, _ in words:
            for i in range(len(symbols) - 1, 0, -1):
                if i < len(symbols) and (symbols[i - 1], symbols[i]) == best:
                    symbols[i - 1 : i + 1] = [best[0] + best[1]]
    return merges


def write_tokenizer(directory, texts):
    letters = byte_letters()
    merges = learn_merges(texts, letters)
    tokens = sorted(letters) + ["".join(pair) for pair in merges]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    added = [
        {
            "id": len(tokens) + i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(SPECIAL_TOKENS)
    ]
    split = {
        "type": "Split",
        "pattern": {"Regex": PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    write_json(
        directory / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": byte_level,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": [list(pair) for pair in merges],
            },
        },
    )
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": EOS,
            "pad_token": PAD,
            "extra_special_tokens": [TURN],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
        },
    )
