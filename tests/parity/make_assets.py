#!/usr/bin/env python3
"""Writes the models, the tokenizer and the data of the parity cases: make_assets.py DIRECTORY.

Everything follows from integer hashes and from word lists, so that every machine writes the same
bytes and none need be committed. Needs numpy only. DIRECTORY gets models/NAME/, tokenizer/,
data/NAME.jsonl and manifest.json with the SHA-256 of each file; the expected numbers name the
hashes they were made from.
"""

import hashlib
import json
import pathlib
import sys

from bpe import write_tokenizer
from corpus import make_texts
from files import write_json
from models import MODELS, write_model
from records import CHAT_TEMPLATE, make_records


def make_assets(directory):
    texts = make_texts()
    (directory / "data").mkdir(parents=True, exist_ok=True)
    records = {name: [{"text": text} for text in rows] for name, rows in texts.items()}
    for name, rows in (records | make_records()).items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (directory / "data" / f"{name}.jsonl").write_bytes(lines.encode())
    (directory / "chat.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_tokenizer(directory / "tokenizer", texts["mixed"] + texts["short"])
    for name, config in MODELS.items():
        write_model(directory / "models" / name, name, config)
    files = sorted(
        path for path in directory.rglob("*") if path.is_file() and path.name != "manifest.json"
    )
    write_json(
        directory / "manifest.json",
        {
            path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make_assets(pathlib.Path(sys.argv[1]))
