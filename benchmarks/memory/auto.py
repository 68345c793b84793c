"""How far memory.auto's choice is from the fastest plan that fits, for ten device limits.

    auto.py [--steps N] [--threads N] [--rounds N] [--no-write]

The job sets what is not in KNOBS, so that the planner chooses among the combinations of KNOBS,
all of which are run once without a limit: their speed, and what they hold. The ten limits lie
evenly between the least and the job without any technique. For each, the planner is asked as a
submitted job would have it asked; its choice is run under the limit, which the allocator enforces;
and it is timed again, in turns with the two others that were fastest of those that fit in the whole
of the limit, although the choice has to leave memory.auto_margin free. Goes to docs/memory.md.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from bench import MIB, PAGE
from harness import Run, Sides

sys.path.insert(0, str(harness.ROOT / "tests/parity"))
import models

NUM_LIMITS = 10
NUM_RIVALS = 2
ROWS, ROW_TOKENS, VOCAB_SIZE = 8, 256, 2048
# 6.4 million parameters; what a step makes is more than what is kept of them.
MODEL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": ROW_TOKENS,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Set by the job, so left alone by the planner.
FIXED = {
    "memory.activation_offloading_target": "host",
    "memory.head_chunk_tokens": 0,
    "memory.mlp_tile_tokens": 0,
}
RECOMPUTES = "memory.gradient_checkpointing"
POLICY, EVERY = f"{RECOMPUTES}_policy", f"{RECOMPUTES}_every"
BATCH = "training.per_device_train_batch_size"
ACCUMULATION = "training.gradient_accumulation_steps"
# Settings of each knob by name; the first is the default of a job file.
KNOBS = [
    {
        "all but attention again": {RECOMPUTES: True, POLICY: "attention", EVERY: 1},
        "nothing again": {RECOMPUTES: False, POLICY: "attention", EVERY: 1},
        "every 2nd block again": {RECOMPUTES: True, POLICY: "attention", EVERY: 2},
        "everything again": {RECOMPUTES: True, POLICY: "full", EVERY: 1},
    },
    {
        "": {"memory.activation_offloading": False},
        "activations offloaded": {"memory.activation_offloading": True},
    },
    {
        "": {"memory.offload_optimizer_device": "none"},
        "optimizer offloaded": {"memory.offload_optimizer_device": "cpu"},
    },
    {
        "": {"memory.offload_param_device": "none"},
        "parameters offloaded": {"memory.offload_param_device": "cpu"},
    },
    {
        f"{rows} x {ROWS // rows}": {BATCH: rows, ACCUMULATION: ROWS // rows}
        for rows in (8, 4, 2, 1)
    },
]


@dataclasses.dataclass
class Plan:
    name: str
    fields: dict
    run: Run | None = None  # without a limit

    def peak(self) -> int:
        return int(self.run.memory["peakBytes"])


def all_plans() -> list[Plan]:
    plans = []
    for settings in itertools.product(*(knob.items() for knob in KNOBS)):
        fields = {path: value for _, values in settings for path, value in values.items()}
        plans.append(Plan(", ".join(name for name, _ in settings if name), fields))
    return plans


def default_fields() -> dict:
    return {path: value for knob in KNOBS for path, value in next(iter(knob.values())).items()}


class Job:
    def __init__(self, options: argparse.Namespace, sides: Sides):
        self.options = options
        self.sides = sides
        self.model = sides.folder / "model"
        models.write_model(self.model, "auto", models.MODELS["llama"] | MODEL)

    def spec(self, fields: dict) -> dict:
        spec = harness.job(
            self.sides.folder,
            method={
                "sft": {"packing": True, "packing_strategy": "wrapped", "max_length": ROW_TOKENS}
            },
            steps=self.options.steps,
            dtype="float32",
            threads=self.options.threads,
        )
        # What a job file does not say, the planner may set.
        del spec["memory"], spec["training"]["per_device_train_batch_size"]
        paths = {"model.path": str(self.model), "model.tokenizer": str(harness.ASSETS / "model")}
        paths["data.cache_dir"] = str(self.sides.folder / "cache")
        return harness.set_fields(spec, paths | FIXED | fields)

    def run(self, fields: dict) -> Run:
        return self.sides.tessera(self.spec(fields))

    def planned(self, limit: int) -> dict:
        """The planner's choice."""
        path = self.sides.folder / "plan.json"
        request = {"spec": self.spec({}), "device_memory": f"{limit}B", "max_seconds": 3}
        path.write_text(json.dumps(request))
        plan = harness.ask_trainer("--plan", "--input", str(path))
        if "choice" not in plan:
            raise harness.ProcessError(f"nothing is chosen for {limit} bytes: {plan}")
        return plan["choice"]


def find(plans: list[Plan], choice: dict) -> Plan:
    """The plan that the planner chose."""
    fields = default_fields()
    for change in choice.get("changes", []):
        fields[change["field"]] = change["value"]
    text = {path: str(value).lower() for path, value in fields.items()}
    for plan in plans:
        if {path: str(value).lower() for path, value in plan.fields.items()} == text:
            return plan
    raise harness.ProcessError(f"the choice is not among the plans: {choice}")


def runs_within(job: Job, plan: Plan, limit: int) -> bool:
    try:
        job.run(plan.fields | {"resources.device_memory": f"{limit}B"})
    except harness.ProcessError as error:
        print(f"{plan.name} does not run in {limit} bytes: {error}", file=sys.stderr, flush=True)
        return False
    return True


class Duels:
    """Speeds of plans that are run in turns, in tokens a second: comparable among each other.

    A plan's is that of its fastest run: what else the machine does only slows runs down.
    """

    def __init__(self, job: Job, rounds: int):
        self.job = job
        self.rounds = rounds
        self.known: dict[frozenset, dict[str, float]] = {}

    def speeds(self, plans: list[Plan]) -> dict[str, float]:
        key = frozenset(plan.name for plan in plans)
        if key not in self.known:
            runs: dict[str, list[float]] = {plan.name: [] for plan in plans}
            for _ in range(self.rounds):
                for plan in plans:
                    runs[plan.name].append(self.job.run(plan.fields).tokens_per_second)
            self.known[key] = {name: max(found) for name, found in runs.items()}
        return self.known[key]


def row_of(job: Job, plans: list[Plan], duels: Duels, limit: int) -> tuple[list[str], float]:
    """A line of the table, and the choice's share of the fastest one's speed."""
    choice = job.planned(limit)
    chosen = find(plans, choice)
    fitting = [plan for plan in plans if plan.peak() <= limit]
    rivals = sorted(fitting, key=lambda plan: -plan.run.tokens_per_second)
    rivals = [plan for plan in rivals if plan is not chosen][:NUM_RIVALS]
    speeds = duels.speeds([chosen, *rivals])
    best = max([chosen, *rivals], key=lambda plan: speeds[plan.name])
    share = speeds[chosen.name] / speeds[best.name]
    within = "yes" if runs_within(job, chosen, limit) else "NO"
    rehearsed = int(choice["rehearsal"]["peakBytes"])
    cells = [f"{limit / MIB:.1f}", chosen.name, f"{rehearsed / MIB:.1f}"]
    cells += [f"{chosen.peak() / MIB:.1f}", within, f"{speeds[chosen.name]:.0f}"]
    cells += [str(len(fitting)), "the choice" if best is chosen else best.name]
    cells += [f"{speeds[best.name]:.0f}", f"{100 * share:.0f}%"]
    print(" | ".join(cells), file=sys.stderr, flush=True)
    return cells, share


def limits_between(plans: list[Plan]) -> list[int]:
    """From the least that leaves the margin free, to the job without techniques, as evenly."""
    margin = 0.05
    least = min(plan.peak() for plan in plans) / (1 - margin)
    plain = next(plan for plan in plans if plan.fields == default_fields() | {RECOMPUTES: False})
    step = (plain.peak() - least) / (NUM_LIMITS - 1)
    return [int(least + i * step) + 1 for i in range(NUM_LIMITS)]


def table(rows: list[tuple[list[str], float]], plans: list[Plan], steps: int) -> list[str]:
    shares = [share for _, share in rows]
    return [
        f"A Llama of 6.4M parameters, {ROWS} full rows of {ROW_TOKENS} tokens a step, float32,"
        f" {harness.processor()}; {len(plans)} plans, each run once, the three of a line again in"
        f" turns, of which the fastest run counts; speeds of a run are medians of"
        f" {steps - harness.WARMUP_STEPS} steps. The choice has"
        f" {100 * min(shares):.0f}% of the fastest one's speed at least,"
        f" {100 * statistics.mean(shares):.0f}% on average. Memory in MiB.",
        "",
        "| limit | choice | rehearsed | held | runs in the limit | tokens/s | plans that fit |"
        " fastest of them | tokens/s | choice of fastest |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells)} |" for cells, _ in rows),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="of runs in turns")


def main() -> None:
    options = harness.parse(__doc__, steps=5, extend=add_options, peers=False)
    harness.prepare_assets()
    plans = all_plans()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Sides(pathlib.Path(folder)))
        for number, plan in enumerate(plans, 1):
            plan.run = job.run(plan.fields)
            line = f"{number} of {len(plans)}: {plan.name}: {plan.peak() / MIB:.1f} MiB,"
            print(f"{line} {plan.run.tokens_per_second:.0f} tokens/s", file=sys.stderr, flush=True)
        duels = Duels(job, options.rounds)
        rows = [row_of(job, plans, duels, limit) for limit in limits_between(plans)]
    lines = table(rows, plans, options.steps)
    print("\n".join(lines))
    if not options.no_write:
        harness.write_between_markers(PAGE, "auto", lines)


if __name__ == "__main__":
    try:
        main()
    except harness.ProcessError as error:
        sys.exit(f"bench: {error}")
