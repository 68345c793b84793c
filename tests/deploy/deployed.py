"""The files of deploy/, what tests do with them, and what they have of tests/cluster."""

import json
import pathlib
import re
import subprocess
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from cluster import cluster, expect, program, run_job, wait_until
from jobs import sft_job

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def load(path):
    return yaml.safe_load((DEPLOY / path).read_text())


def load_all(path):
    return [document for document in yaml.safe_load_all((DEPLOY / path).read_text()) if document]


def dashboard():
    return json.loads((DEPLOY / "grafana/dashboards/tessera.json").read_text())


def rules(path):
    """Every rule of a file of Prometheus rules."""
    return [rule for group in load(path)["groups"] for rule in group["rules"]]


def run(*command, **options):
    """(exit code, all that was printed)."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        **options,
    )
    return done.returncode, done.stdout


def check(*command, **options):
    code, output = run(*command, **options)
    expect(code == 0, f"{' '.join(map(str, command))} ended with {code}:\n{output}")
    return output


def metric_names(expression):
    """Names of metrics and of recorded series in an expression."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"', '""', expression)
    bare = re.sub(r"\b(by|on|ignoring|without)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    words = re.findall(r"[a-zA-Z_][\w:]*(?!\w*\s*\()", bare)
    return {word for word in words if re.match(r"tessera_|process_|up$|\w+:tessera_", word)}


__all__ = ["DEPLOY", "ROOT", "check", "cluster", "dashboard", "expect", "load", "load_all"]
__all__ += ["metric_names", "program", "rules", "run", "run_job", "sft_job", "wait_until"]
