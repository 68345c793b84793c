"""A reward server of two functions for examples/rewards/job.yaml.

pip install ./client/python
python examples/rewards/server.py
"""

import re

from tessera.rewards import reward, serve


@reward
def correct(completions, answer, **columns):
    """1 where the last number is the record's answer; None where the record has none."""
    scores = []
    for text, wanted in zip(completions, answer, strict=True):
        numbers = re.findall(r"-?\d+", text)
        scores.append(None if wanted is None else float(numbers[-1:] == [str(wanted)]))
    return scores


@reward
async def brief(completion_ids):
    """-1 for each 100 tokens."""
    return [-len(tokens) / 100 for tokens in completion_ids]


if __name__ == "__main__":
    serve(address="127.0.0.1:50051")
