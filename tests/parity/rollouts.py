"""Completions with rewards, as data.rollouts takes them.

Groups of a block of BLOCK stand mixed, as they do after a trainer has shuffled them.
"""

from bpe import SPECIAL_TOKENS, VOCAB_SIZE
from draws import Draws

END_ID = VOCAB_SIZE - len(SPECIAL_TOKENS) + 1
NUM_GENERATIONS = 4
BLOCK = 12
MOST_TOKENS = 14  # of a completion
REWARDS = ["length", "style"]


def tokens(draws, count):
    return [draws.below(VOCAB_SIZE - len(SPECIAL_TOKENS)) for _ in range(count)]


def completion(draws):
    """(tokens, whether it was cut off)."""
    count = 1 + draws.below(MOST_TOKENS + 4)
    if count >= MOST_TOKENS:
        return tokens(draws, MOST_TOKENS), True
    return [*tokens(draws, count - 1), END_ID], False


def rollout(draws, group, prompt):
    ids, truncated = completion(draws)
    style = None if draws.below(9) == 0 else draws.below(17) / 4 - 2
    rewards = dict(zip(REWARDS, [-abs(len(ids) - 8) / 5, style], strict=True))
    return {
        "group": group,
        "prompt_ids": prompt,
        "completion_ids": ids,
        "rewards": rewards,
        "truncated": truncated,
    }


def groups_of(seed, blocks):
    draws = Draws(seed)
    rows = []
    for block in range(blocks):
        of_block = []
        for _ in range(BLOCK // NUM_GENERATIONS):
            group, prompt = f"{block}-{len(of_block)}", tokens(draws, 2 + draws.below(9))
            of_block += [rollout(draws, group, prompt) for _ in range(NUM_GENERATIONS)]
        # Of one completion nothing is known, and one group agrees.
        if block == 1:
            of_block[1]["rewards"] = dict.fromkeys(REWARDS)
            for row in of_block[4:8]:
                row["rewards"] = dict.fromkeys(REWARDS, 0.5)
        while of_block:
            rows.append(of_block.pop(draws.below(len(of_block))))
    return rows


def sampled(seed, blocks):
    """With log-probabilities about as models without training have them, and tokens of others."""
    draws = Draws(seed + 100)
    rows = groups_of(seed, blocks)
    for i, row in enumerate(rows):
        count = len(row["completion_ids"])
        row["logprobs"] = [-6.65 - draws.below(40) / 100 for _ in range(count)]
        if i % 5 == 0:
            row["logprobs"][0] = None
        row["env_mask"] = [0 if count > 3 and k == 1 and i % 3 == 0 else 1 for k in range(count)]
    return rows


def pairs_of_completions(seed, count):
    draws = Draws(seed)
    rows = []
    for group in range(count):
        prompt = tokens(draws, 2 + draws.below(9))
        pair = [rollout(draws, group, prompt) for _ in range(2)]
        for row in pair:
            row["rewards"] = {"style": draws.below(9) / 2}
        rows += pair
    return rows


def full_pairs(seed, count):
    """All of one length: TRL adds some metrics up over padding, too."""
    draws = Draws(seed)
    rows = pairs_of_completions(seed + 100, count)
    for row in rows:
        row["completion_ids"], row["truncated"] = tokens(draws, MOST_TOKENS), True
    return rows


def judged(seed, blocks):
    """Each with a reward."""
    rows = groups_of(seed, blocks)
    draws = Draws(seed + 100)
    for row in rows:
        row["rewards"] = {"style": draws.below(17) / 4 - 2}
        del row["group"]
    return rows


def make_rollouts():
    return {
        "rollouts": groups_of(31, 8),
        "rollouts_sampled": sampled(32, 8),
        "rollouts_pairs": pairs_of_completions(33, 48),
        "rollouts_pairs_full": full_pairs(34, 48),
        "rollouts_judged": judged(35, 8),
    }
