"""Writes the packing plans and masked rows of TRL, mixtures of datasets and permutations of torch
in fixtures/ of this folder. (The tokenizers there come from make_tokenizers.py.) By hand:

    python make_fixtures.py

Needs trl 1.16, datasets 5 and torch 2.13. The tests need none of them.
"""

import itertools
import json
import random
import types
from pathlib import Path

import torch
from datasets import Dataset, interleave_datasets
from trl import SFTConfig, SFTTrainer
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


def masked():
    """What SFTTrainer makes of documents with labels: truncation, dropping, packing."""
    rng = random.Random(11)
    documents = []
    for _ in range(1100):
        length = rng.choice([1, 3, 8, 20, 45]) + rng.randrange(4)
        share = rng.choice([0, 0.1, 0.5, 1])
        documents.append("".join("1" if rng.random() < share else "0" for _ in range(length)))
    cases = []
    for strategy, max_length in [
        ("none", None),
        ("none", 9),
        ("bfd", 32),
        ("bfd_split", 32),
        ("wrapped", 24),
    ]:
        rows = masked_rows(documents, strategy, max_length)
        cases.append({"strategy": strategy, "max_length": max_length or 0, "rows": rows})
    return {"documents": documents, "cases": cases}


def masked_rows(documents, strategy, max_length):
    """[first token of each document, lengths of documents, mask] of each row; a token is its place
    in all documents."""
    tokens, begin = [], 0
    for document in documents:
        tokens.append(list(range(begin, begin + len(document))))
        begin += len(document)
    labels = [
        [token if bit == "1" else -100 for token, bit in zip(ids, mask, strict=True)]
        for ids, mask in zip(tokens, documents, strict=True)
    ]
    packs = strategy != "none"
    config = SFTConfig(
        output_dir="unused",
        max_length=max_length,
        packing_strategy=strategy if packs else "bfd",
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = types.SimpleNamespace(completion_only_loss=False)
    dataset = Dataset.from_dict({"input_ids": tokens, "labels": labels})
    prepared = SFTTrainer._prepare_dataset(trainer, dataset, None, config, packs, None, "train")
    rows = []
    for row in prepared:
        lengths = row.get("seq_lengths") or [len(row["input_ids"])]
        starts = [0, *itertools.accumulate(lengths)][:-1]
        mask = "".join("0" if label == -100 else "1" for label in row["labels"])
        rows.append([[row["input_ids"][start] for start in starts], lengths, mask])
    return rows


def interleaved():
    """Orders of documents that interleave_datasets makes."""
    cases = []
    for sizes, weights, seed, stopping in [
        ([5, 7, 3], [0.5, 0.3, 0.2], 42, "first_exhausted"),
        ([5, 7, 3], [0.5, 0.3, 0.2], 42, "all_exhausted"),
        ([1500, 900], [2 / 3, 1 / 3], 0, "first_exhausted"),
        ([30, 200, 11, 64], [0.1, 0.6, 0.05, 0.25], 123456789, "all_exhausted"),
        ([40, 41], [0.5, 0.5], 4294967295, "first_exhausted"),
    ]:
        begins = [0, *itertools.accumulate(sizes)]
        sources = [
            Dataset.from_dict({"i": list(range(*ends))}) for ends in itertools.pairwise(begins)
        ]
        mixed = interleave_datasets(
            sources, probabilities=weights, seed=seed, stopping_strategy=stopping
        )
        cases.append(
            {
                "sizes": sizes,
                "weights": weights,
                "seed": seed,
                "stopping_strategy": stopping,
                "order": list(mixed["i"]),
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
    write(FIXTURES / "masked.json", masked())
    write(FIXTURES / "interleave.json", interleaved())
    write(FIXTURES / "permutations.json", permutations())


if __name__ == "__main__":
    main()
