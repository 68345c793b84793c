"""Whether two runs did the same: steps, weights, and what a rehearsal says of memory."""

import numpy as np
from techniques import EXACT, PEAK_EXACT
from trials import TrialError, held

# L2 distance of a tensor's final values over their norm. AdamW makes whole steps of gradients that
# nearly cancel, so weights differ more than gradients do.
WEIGHT_TOLERANCE_RATIO = 100
# Differences of sums of log-probabilities, times beta: as exact as those.
BETA = 0.1
OF_LOG_RATIOS = ("rewards/chosen", "rewards/rejected", "rewards/margins", "kl")
# Means of logits of either sign: they cancel nearly, and their rounding does not.
OF_LOGITS = ("logits/chosen", "logits/rejected")
LOGIT_SIZE = 0.01
# Of scores of documents: as exact as the largest one.
OF_SCORES = ("min_reward", "mean_reward", "max_reward", "margin")
# Of a microbatch's ratios.
OF_CLIPPING = (
    "clip_ratio/low_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_mean",
    "clip_ratio/high_max",
    "clip_ratio/region_mean",
)
# Means over a microbatch's tokens, the largest of its rows and the like.
OF_MICROBATCHES = ("entropy", "mean_token_accuracy", "kl", *OF_LOGITS, *OF_CLIPPING)
EXTREMES = ("min_reward", "max_reward")
# Shares of what is more likely than something else: rounding decides where both are nearly so, as
# rewards are before the first update.
SHARES = (
    "mean_token_accuracy",
    "rewards/accuracies",
    "accuracy",
    "policy/clipfrac_avg",
    "val/clipfrac_avg",
    *OF_CLIPPING,
)


def compare_steps(got, want, tolerance, regrouped, size):
    """`regrouped`: the microbatches of one run have other rows than those of the other. `size`: of
    what losses and metrics are differences of."""
    for ours, theirs in zip(got, want, strict=True):
        for name in ("loss", "gradNorm"):
            scale = max(abs(theirs[name]), size if name == "loss" else 0)
            compare(theirs["step"], name, ours[name], theirs[name], scale, tolerance)
        if ours["numTokens"] != theirs["numTokens"]:
            raise TrialError(f"step {theirs['step']}: {ours['numTokens']} tokens")
        left_out = OF_MICROBATCHES + EXTREMES if regrouped else ()
        compare_metrics(ours, theirs, tolerance, left_out, size)


def compare_metrics(ours, theirs, tolerance, left_out, size):
    got, want = ours["metrics"], theirs["metrics"]
    if got.keys() != want.keys():
        raise TrialError(f"the metrics are others: {sorted(got.keys() ^ want.keys())}")
    of_logps = max((abs(want[name]) for name in want if name.startswith("logps/")), default=0)
    if tolerance > EXACT or theirs["step"] == 1:
        left_out += SHARES
    of_rewards = max((abs(want[name]) for name in want if name in OF_SCORES), default=0)
    for name in sorted(want.keys() - left_out):
        if name in OF_LOG_RATIOS:
            scale = max(BETA * of_logps, size)
        elif name in OF_SCORES:
            scale = of_rewards
        elif name in OF_LOGITS:
            scale = LOGIT_SIZE
        else:
            scale = max(abs(want[name]), size)
        compare(theirs["step"], name, got[name], want[name], scale, tolerance)


def compare(step, name, got, want, scale, tolerance):
    error = abs(got - want) / scale if got != want else 0
    if not error <= tolerance:
        raise TrialError(
            f"step {step}: {name} is {got!r}, it was {want!r}, {error:.1e} apart (at most"
            f" {tolerance:.0e})"
        )


def compare_tensors(got, want, tolerance):
    if got.keys() != want.keys():
        raise TrialError(f"the tensors are others: {sorted(got.keys() ^ want.keys())}")
    for name, values in want.items():
        error = np.linalg.norm(got[name] - values) / max(np.linalg.norm(values), 1e-6)
        if not error <= tolerance * WEIGHT_TOLERANCE_RATIO:
            raise TrialError(f"{name} is {error:.1e} of its norm away (at most {tolerance:.0e})")


def compare_peaks(rehearsal, memory):
    """The error of the rehearsed peak, relative; no owner in either space may be off by more of the
    measured one, of the rank that held most there."""
    ours, ranks = held(rehearsal), [held(of_rank) for of_rank in memory]
    limit = PEAK_EXACT * max(rank["peak"] for rank in ranks)
    for space in ("", "host "):
        theirs = max(ranks, key=lambda rank: rank[space + "peak"])
        for what in sorted(ours.keys() | theirs.keys()):
            rehearsed, real = ours.get(what, 0), theirs.get(what, 0)
            if what.startswith("host ") == bool(space) and abs(rehearsed - real) > limit:
                raise TrialError(f"{what} was rehearsed at {rehearsed} bytes and took {real}")
    return abs(ours["peak"] / max(rank["peak"] for rank in ranks) - 1)
