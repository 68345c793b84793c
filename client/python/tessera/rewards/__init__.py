"""Reward servers: a function that judges completions, asked by a training job.

    from tessera.rewards import reward, serve

    @reward
    def exact(completions, answer, **columns):
        return [float(c.strip() == a) for c, a in zip(completions, answer)]

    serve(address="127.0.0.1:50051")

A job names it as `reward_funcs: [{name: exact, server: {address: "127.0.0.1:50051"}}]`.
"""

from tessera.rewards.functions import BadScoresError, RewardFunction, reward
from tessera.rewards.server import serve, serve_async

__all__ = ["BadScoresError", "RewardFunction", "reward", "serve", "serve_async"]
