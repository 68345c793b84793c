"""Writes the packing plans of TRL and permutations of torch in fixtures/ of this folder. (The
tokenizers there come from make_tokenizers.py.) By hand:

    python make_fixtures.py

Needs trl 1.16, datasets 5 and torch 2.13. The tests need none of them.
"""

import itertools
import json
import random
from pathlib import Path

import torch
from datasets import Dataset
from trl.data_utils import pack_dataset

FIXTURES = Path(__file__).parent / "fixtures"


def write(path, value):
    path.write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=True) + "\n")


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
    write(FIXTURES / "packing.json", packing())
    write(FIXTURES / "permutations.json", permutations())


if __name__ == "__main__":
    main()
