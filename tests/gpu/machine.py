"""Where the checklist runs, and how it trains a job there."""

import argparse
import dataclasses
import pathlib

import ranks
import shapes
import trials
from outcomes import DiffError, SkippedError

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Machine:
    programs: pathlib.Path
    assets: pathlib.Path
    scratch: pathlib.Path
    device: str  # cpu or cuda
    num_devices: int
    small: bool  # so little work that a processor does it in seconds

    @property
    def trainer(self) -> pathlib.Path:
        return self.programs / "tessera-trainer"

    def options(self, world: int = 1) -> argparse.Namespace:
        """As the tests of tests/parity take them."""
        return argparse.Namespace(
            trainer=self.trainer, assets=self.assets, world=world, device=self.device
        )

    def need_devices(self, count: int) -> None:
        if self.num_devices < count:
            raise SkippedError(f"needs {count} devices, there are {self.num_devices}")

    def need_cuda(self) -> None:
        if self.device != "cuda":
            raise SkippedError("is about what only a GPU has")

    def spec(self, name: str, *, world: int = 1, dtype: str = "float32", **more) -> dict:
        """A job on the tiny models; output goes to a folder of that name. `more`: as
        trials.make_spec takes it."""
        fields = {
            "model.dtype": dtype,
            "resources.device": self.device,
            "data.cache_dir": str(self.scratch / "cache"),
        } | more.pop("fields", {})
        training = {"save_strategy": "no", "logging_steps": 1, "per_device_train_batch_size": 4}
        return trials.make_spec(
            self.options(), self.scratch / name, world, fields=fields, **(training | more)
        )

    def shape(self, of_gpu: shapes.Shape, of_cpu: shapes.Shape) -> shapes.Shape:
        return of_cpu if self.small else of_gpu

    def shaped_spec(self, name: str, shape: shapes.Shape, **more) -> dict:
        """A job on a model of random weights of that shape, and on rows that are full."""
        model = self.scratch / "models" / shape.name
        if not model.exists():
            shapes.write_model(model, shape, self.assets / "tokenizer")
        data = self.scratch / "documents.jsonl"
        if not data.exists():
            shapes.write_documents(data, self.assets / "data/mixed.jsonl", self.small)
        fields = {
            "model.path": str(model),
            "model.tokenizer": str(model),
            "data.train": str(data),
            "method.sft.packing": True,
            "method.sft.packing_strategy": "wrapped",
        } | more.pop("fields", {})
        return self.spec(name, fields=fields, **more)

    def train(self, spec: dict) -> list[dict]:
        """Rank 0's events."""
        try:
            return trials.train(self.options(), spec)
        except ranks.RunError as error:
            raise DiffError(str(error)) from None


def series(events: list[dict], name: str) -> list[float]:
    """A field of each step."""
    return [float(ranks.metric(event["step"], name)) for event in events if "step" in event]


def relative(got: float, want: float) -> float:
    return abs(got - want) / abs(want) if want else abs(got)


def largest_gap(got: list[float], want: list[float]) -> float:
    """Relative, of two runs of as many steps."""
    if len(got) != len(want) or not got:
        raise DiffError(f"{len(got)} steps against {len(want)}")
    return max(relative(a, b) for a, b in zip(got, want, strict=True))
