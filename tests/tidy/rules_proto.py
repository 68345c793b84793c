"""Rules of the protos: a field says what it means, unless its name and type say all."""

import re
from collections.abc import Iterator

from tree import Finding, Tree

_FIELD = re.compile(
    r"^\s*(?:optional\s+|repeated\s+)?(?P<type>[\w.]+(?:<[^>]*>)?)\s+"
    r"(?P<name>\w+)\s*=\s*\d+\s*(?P<options>\[.*)?;?"
)
_BLOCK = re.compile(r"^\s*(?P<kind>message|enum|oneof|service|extend)\b")
# Ends of names that give unit and meaning.
_UNITS = ("_bytes", "_seconds", "_ms", "_time", "_offset", "_per_second")
# The vocabulary of the service: one meaning everywhere, said where the message of that name is.
_WORDS = frozenset(
    """
    address attempt bytes device_index entropy epoch gradient_norm hostname id index job
    job_id kind learning_rate local_rank loss mean_token_accuracy microbatch name node num_tokens
    offset page_size page_token path pid port previous rank reason revision run seconds
    severity spec state step text time version world_size
    """.split()  # noqa: SIM905 - a word list reads better so
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rsplit(".", 1)[-1]).lower()


def _self_evident(name: str, type_name: str) -> bool:
    words = {name, name.rstrip("s")}
    return (
        bool(words & _WORDS)
        or name.endswith(_UNITS)
        or _snake(type_name).endswith((name, name.rstrip("s")))
        or _snake(type_name).startswith(name)
    )


def check_fields(tree: Tree) -> Iterator[Finding]:
    for path in tree.matching(".proto"):
        blocks: list[str] = []
        commented = False
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            stripped = line.strip()
            block, field = _BLOCK.match(line), _FIELD.match(line)
            if stripped.startswith("//"):
                commented = True
                continue
            if block:
                blocks.append(block["kind"])
            elif field and blocks and blocks[-1] in ("message", "oneof"):
                has_rule = "(rule)" in (field["options"] or "")
                if not (
                    commented
                    or has_rule
                    or "//" in line
                    or _self_evident(field["name"], field["type"])
                ):
                    yield Finding(path, number, "field", f"{field['name']}: say what it means")
            if "}" in stripped and blocks and not ("{" in stripped and not block):
                blocks.pop()
            commented = False
