#!/usr/bin/env python3
"""A sweep over learning rates: half of the trials are cancelled early, the best goes on.

sweep.py JOB_FILE --rates 1e-4 3e-4 1e-3 3e-3 --judge-at 20 --steps 40 --further 80

Submits a trial of the job for each rate, watches them all at once, and cancels the worst half by
the loss at step --judge-at. The best of those that end goes on from its last checkpoint to
--further steps. Needs `pip install ./client/python`, and a service (`tessera up`) that can run all
at once.
"""

import argparse
import asyncio
import copy
import pathlib
import statistics

import tessera

# A loss is of one batch: the mean of some says more.
WINDOW = 5


class Trial:
    """A job with one learning rate, and what is known of it."""

    def __init__(self, base, rate, steps, directory):
        self.spec = copy.deepcopy(base)
        self.spec.name = f"{base.name[:40]}-lr-{rate:g}"
        self.spec.training.learning_rate = rate
        self.spec.training.max_steps = steps
        self.spec.training.output_dir = str(directory / f"lr-{rate:g}")
        self.rate = rate
        self.losses = {}
        self.checkpoint = None
        self.state = None

    def loss_at(self, step):
        """The mean of the last losses before a step; infinite where it did not come so far."""
        last = [self.losses.get(s) for s in range(max(1, step - WINDOW + 1), step + 1)]
        return float("inf") if None in last else statistics.fmean(last)

    async def run(self, client, judged, judge_at):
        """Submits and follows the job. `judged` is set, and told, once `judge_at` is reached."""
        self.id = (await client.submit(self.spec)).id
        async for event in client.watch(self.id):
            if event.HasField("step"):
                self.losses[event.step.step] = event.step.loss
                if event.step.step >= judge_at:
                    judged.set()
            elif event.HasField("checkpoint"):
                self.checkpoint = event.checkpoint.path
            elif event.HasField("state"):
                self.state = event.state.state
        # A trial that fails early is judged by what it has.
        judged.set()


async def sweep(client, trials, judge_at):
    """Runs all trials to the step of judgement, and the better half to the end."""
    judged = [asyncio.Event() for _ in trials]
    running = [
        asyncio.create_task(trial.run(client, event, judge_at))
        for trial, event in zip(trials, judged, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in judged))
    ranked = sorted(trials, key=lambda trial: trial.loss_at(judge_at))
    keep = ranked[: (len(ranked) + 1) // 2]
    for trial in ranked:
        verdict = "goes on" if trial in keep else "cancelled"
        print(f"step {judge_at}: lr {trial.rate:g}  loss {trial.loss_at(judge_at):.4f}  {verdict}")
        if trial not in keep:
            await client.cancel(trial.id)
    await asyncio.gather(*running)
    for trial in trials:
        print(f"{trial.id} {tessera.State.Name(trial.state)} after {max(trial.losses)} steps")
    done = [trial for trial in keep if trial.state == tessera.State.SUCCEEDED]
    return min(done, key=lambda trial: trial.loss_at(max(trial.losses)))


async def go_on(client, best, further):
    """The best trial from its last checkpoint, as a job of its own."""
    spec = copy.deepcopy(best.spec)
    spec.name = f"{spec.name[:50]}-on"
    spec.training.resume_from_checkpoint = best.checkpoint
    spec.training.max_steps = further
    spec.training.output_dir += "-on"
    job = await client.submit(spec)
    print(f"{job.id} goes on from {pathlib.Path(best.checkpoint).name}")
    steps = [event.step async for event in client.watch(job.id) if event.HasField("step")]
    ended = await client.get(job.id)
    print(
        f"{job.id} {tessera.State.Name(ended.state)}: steps {steps[0].step} to {steps[-1].step}, "
        f"loss {steps[0].loss:.4f} to {steps[-1].loss:.4f}"
    )
    return ended.state == tessera.State.SUCCEEDED


async def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job_file")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3, 3e-3])
    parser.add_argument("--judge-at", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--further", type=int, default=80)
    parser.add_argument("--address", help="unix:PATH or HOST:PORT; default: the service here")
    options = parser.parse_args()
    base = tessera.load_job(options.job_file)
    directory = pathlib.Path(base.training.output_dir)
    trials = [Trial(base, rate, options.steps, directory) for rate in options.rates]
    async with tessera.AsyncClient(options.address) as client:
        best = await sweep(client, trials, options.judge_at)
        print(f"best: lr {best.rate:g}")
        return 0 if await go_on(client, best, options.further) else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
