#!/usr/bin/env python3
"""Every flag that a file of deploy/ gives to a program is one that the program has.

flags_test.py --bin DIR
"""

import argparse
import pathlib
import re
import shlex

from deployed import DEPLOY, check, expect, load, load_all

PROGRAMS = ("tesserad", "tessera-agent", "tessera")


def of_units():
    for name in ("tesserad.service", "tesserad-postgres.conf", "tessera-agent.service"):
        unit = (DEPLOY / f"systemd/{name}").read_text().replace("\\\n", " ")
        (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
        yield shlex.split(command)
    for name in ("tesserad", "tessera-agent"):
        settings = (DEPLOY / f"systemd/{name}.env").read_text()
        for flags in re.findall(r"_FLAGS=(.*)$", settings, re.MULTILINE):
            yield [name, *shlex.split(flags)]


def of_containers():
    text = (DEPLOY / "container/Containerfile").read_text()
    entries = {
        words[0]: words
        for found in re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
        for words in [re.findall(r'"([^"]*)"', found)]
    }
    expect(set(entries) == {"tesserad", "tessera-agent"}, f"entry points: {entries}")
    yield from entries.values()
    for name, service in load("container/compose.yaml")["services"].items():
        if "tessera" not in service["image"]:
            continue
        yield ["tesserad" if name == "coordinator" else "tessera-agent", *service["command"]]
        if "healthcheck" in service:
            yield service["healthcheck"]["test"][1:]


def of_kubernetes():
    for path in ("kubernetes/coordinator.yaml", "kubernetes/agents.yaml"):
        for document in load_all(path):
            if "template" not in document.get("spec", {}):
                continue
            for container in document["spec"]["template"]["spec"]["containers"]:
                if container["name"] not in PROGRAMS:
                    continue
                yield [container["name"], *container["args"]]
                for key, value in container.items():
                    if key.endswith("Probe"):
                        yield value["exec"]["command"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    options = parser.parse_args()
    known = {
        name: set(re.findall(r"--[a-z-]+", check(options.bin / name, "--help")))
        for name in PROGRAMS
    }
    seen = 0
    for command in (*of_units(), *of_containers(), *of_kubernetes()):
        for word in command[1:]:
            if word.startswith("--"):
                flag = word.split("=")[0]
                expect(flag in known[command[0]], f"{command[0]} has no {flag}: {command}")
                seen += 1
    expect(seen > 30, f"only {seen} flags were found")
    print(f"ok: {seen} flags")


if __name__ == "__main__":
    main()
