#!/usr/bin/env python3
"""The Containerfile and compose.yaml: by compose's schema, and that each name leads somewhere."""

import json
import re

import compose_spec
from deployed import DEPLOY, ROOT, expect, load

FOLDER = DEPLOY / "container"
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE"}
INSTRUCTIONS |= {"STOPSIGNAL", "ENTRYPOINT", "CMD"}


def instructions():
    """(instruction, its text) of the Containerfile, in order."""
    text = (FOLDER / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def expect_unqualified(image):
    """Which registry is meant is a setting of the machine that pulls."""
    host = image.split("/")[0]
    named = "/" in image and ("." in host or ":" in host or host == "localhost")
    expect(not named, f"{image} names a registry")


def test_stages():
    stages = {}
    for word, text in instructions():
        expect(word in INSTRUCTIONS, f"no instruction of a Containerfile: {word} {text}")
        if word == "FROM":
            image, _, stage = text.split()
            expect(image == "${BASE}" or image in stages, f"{stage} is from {image}")
            stages[stage] = stages.get(image, "root")
            current = stage
        elif word == "ARG":
            expect_unqualified(text.partition("=")[2])
        elif word == "USER":
            stages[current] = text
        elif word == "COPY" and text.startswith("--from="):
            source = text.split()[0].removeprefix("--from=")
            expect(source in stages, f"{current} copies from {source}")
        elif word == "COPY":
            for path in text.split()[:-1]:
                expect((ROOT / path).exists(), f"{current} copies {path}, which is not there")
        elif word in ("ENTRYPOINT", "CMD"):
            json.loads(text)  # else it would be run by a shell, which keeps signals for itself
    for stage in ("coordinator", "agent", "agent-cuda"):
        expect(stages.get(stage) == "10001:10001", f"{stage} runs as {stages.get(stage)}")
    return stages


def test_compose(stages):
    text = (FOLDER / "compose.yaml").read_text()
    compose = load("container/compose.yaml")
    # The reader knows neither anchors nor variables.
    plain = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", json.dumps(compose))
    parsed = compose_spec.PyCompose.from_yaml(plain)
    parsed.validate_volumes()
    parsed.validate_networks()
    parsed.validate_secrets()
    expect("$" not in plain, "a variable has no default")
    broken = plain.replace('"healthcheck"', '"healthcheks"')
    try:
        compose_spec.PyCompose.from_yaml(broken)
    except ValueError:
        pass
    else:
        raise AssertionError("the schema takes a key that compose has not")
    for name, service in json.loads(plain)["services"].items():
        expect_unqualified(service["image"])
        expect(service["read_only"] and service["cap_drop"] == ["ALL"], f"{name} is not confined")
        if "build" in service:
            context = FOLDER / service["build"]["context"]
            expect(
                (context / service["build"]["dockerfile"]).is_file(), f"{name} has no build file"
            )
            expect(service["build"]["target"] in stages, f"{name} has no stage")
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                expect((FOLDER / source).is_dir(), f"{name} mounts {source}, which is not there")
            else:
                expect(source in compose["volumes"], f"{name} mounts {source}, which is none")
    for volume in compose["volumes"]:
        expect(f"{volume}:/" in text, f"nobody mounts {volume}")


def main():
    test_compose(test_stages())
    print("ok: containers")


if __name__ == "__main__":
    main()
