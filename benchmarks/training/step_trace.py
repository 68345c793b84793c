"""What a trace of a step (training.profile_steps) says: where the time of the thread that trains
went, and which matrix products it ran.
"""

import dataclasses
import json
import pathlib

# Names in the trace. Those inside of one of them are a part of it.
PARTS = {
    "matrix products": {
        "aten::mm",
        "aten::addmm",
        "aten::addmm_",
        "aten::bmm",
        "aten::baddbmm",
        "bfloat product",
    },
    "attention": {
        "attention",
        "attention backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    },
    "RMSNorm": {"rms_norm", "rms_norm backward"},
    "RoPE": {"rotate"},
    "SwiGLU": {"swiglu", "swiglu backward"},
    "log-probabilities": {"label_stats", "logit_gradient", "divergence"},
    "AdamW": {"adamw"},
    "gradient norm": {"gradient norm"},
    "gather and reduce": {"communication start", "communication wait"},
    "data": {"data"},
}
OTHER_OPERATORS, REST = "other operators", "rest"
ROWS = [*PARTS, OTHER_OPERATORS, REST]
PART_OF = {name: part for part, names in PARTS.items() for name in names}
PHASES = {"forward", "backward", "optimizer"}

Operand = tuple[tuple[int, ...], tuple[int, ...], str]  # sizes, strides, type


@dataclasses.dataclass(frozen=True)
class Product:
    """left @ right, or out += left @ right."""

    adds: bool
    left: Operand
    right: Operand


@dataclasses.dataclass(frozen=True)
class Attention:
    tokens: int
    heads: int
    width: int
    dtype: str
    backward: bool


@dataclasses.dataclass
class StepTrace:
    seconds: dict[str, float]  # by ROWS
    operators: dict[str, float]  # of OTHER_OPERATORS, by name
    products: list[Product]
    attention: list[Attention]


def spans_of(path: pathlib.Path) -> list[dict]:
    """Those of the thread that trains, outer ones first."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X" and "tid" in event]
    trains = next(span["tid"] for span in spans if span["name"] == "backward")
    own = [
        span
        for span in spans
        if span["tid"] == trains and span.get("cat") in ("cpu_op", "user_annotation")
    ]
    return sorted(own, key=lambda span: (span["ts"], -span["dur"]))


def part_of(name: str, outer: str) -> str:
    """What a span counts for that lies in one that counts for `outer`."""
    if outer in PARTS and outer != "data":
        return outer
    if name in PART_OF:
        return PART_OF[name]
    if name in PHASES:
        return REST
    return OTHER_OPERATORS if name.startswith("aten::") else outer


def operand(arguments: dict, index: int) -> Operand:
    return (
        tuple(arguments["Input Dims"][index]),
        tuple(arguments["Input Strides"][index]),
        arguments["Input type"][index],
    )


def product_of(span: dict) -> Product:
    adds = "addmm" in span["name"] or "baddbmm" in span["name"]
    first = 1 if adds else 0
    return Product(adds, operand(span["args"], first), operand(span["args"], first + 1))


def attention_of(span: dict) -> Attention:
    arguments = span["args"]
    sizes = arguments["Input Dims"][0]
    if span["name"].startswith("aten::"):
        backward = span["name"].endswith("backward")
        _, heads, tokens, width = sizes
    else:
        backward = "backward" in span["name"]
        tokens, heads, width = sizes
    return Attention(tokens, heads, width, arguments["Input type"][0], backward)


def read_trace(path: pathlib.Path) -> StepTrace:
    trace = StepTrace(dict.fromkeys(ROWS, 0.0), {}, [], [])
    stack: list[tuple[float, str, str]] = []  # end, part, name
    last = 0.0

    def advance(until: float) -> None:
        """The time up to there is that of the innermost span."""
        nonlocal last
        if stack and until > last:
            _, part, name = stack[-1]
            seconds = (until - last) / 1e6
            trace.seconds[part] += seconds
            if part == OTHER_OPERATORS:
                trace.operators[name] = trace.operators.get(name, 0.0) + seconds
        last = max(last, until)

    for span in spans_of(path):
        while stack and stack[-1][0] <= span["ts"]:
            advance(stack[-1][0])
            stack.pop()
        advance(span["ts"])
        outer = stack[-1][1] if stack else REST
        part = part_of(span["name"], outer)
        stack.append((span["ts"] + span["dur"], part, span["name"]))
        if part == outer:
            continue
        if part == "matrix products":
            trace.products.append(product_of(span))
        elif part == "attention":
            trace.attention.append(attention_of(span))
    while stack:
        advance(stack[-1][0])
        stack.pop()
    return trace
