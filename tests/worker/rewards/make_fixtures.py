"""What TRL's own reward functions give, for rules_test.cc: fixtures/trl.json.

make_fixtures.py, in a virtual environment with trl (the file says which version made it).
"""

import itertools
import json
import pathlib
import random

import trl
from trl.rewards import get_soft_overlong_punishment, think_format_reward

HERE = pathlib.Path(__file__).parent
PARTS = ["<think>", "</think>", "\n", " ", "text", "<answer>4</answer>", "<Think>", "<think", "é"]


def format_cases():
    texts = ["".join(parts) for size in range(4) for parts in itertools.product(PARTS, repeat=size)]
    draw = random.Random(7)
    texts += ["<think>" + "".join(draw.choices(PARTS, k=8)) for _ in range(300)]
    texts = sorted(set(texts))
    scores = think_format_reward([[{"content": text}] for text in texts])
    # Few are in the format; as many that are not are enough.
    kept = [pair for pair in zip(texts, scores, strict=True) if pair[1]]
    others = [pair for pair in zip(texts, scores, strict=True) if not pair[1]]
    return sorted(kept + draw.sample(others, 2 * len(kept)))


def length_cases():
    cases = []
    for most, cache in [(20, 0), (20, 5), (20, 20), (7, 3), (1, 1)]:
        punish = get_soft_overlong_punishment(max_completion_len=most, soft_punish_cache=cache)
        lengths = range(1, most + 4)
        scores = punish(completion_ids=[[1] * length for length in lengths])
        cases += [(most, cache, *row) for row in zip(lengths, scores, strict=True)]
    return cases


fixtures = {
    "trl": trl.__version__,
    "think_format_reward": format_cases(),
    "get_soft_overlong_punishment": length_cases(),
}
lines = json.dumps(fixtures, ensure_ascii=True).replace('], ["', '],\n["').replace("], [", "],\n[")
(HERE / "fixtures/trl.json").write_text(lines + "\n")
