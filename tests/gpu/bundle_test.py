#!/usr/bin/env python3
"""Packs the programs of a build as a bundle, and uses it as on a machine that has torch and nothing
else of ours: in an empty folder, with a clean environment, and, for root, where the checkout and
the libraries that the bundle brings are not to be seen.

    bundle_test.py --bin DIR [--all]

--all: every item of the checklist that a processor can show.
"""

import argparse
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import traces

ROOT = pathlib.Path(__file__).resolve().parents[2]
ITEMS = ["parity", "isolation", "limit", "killed", "training"]
# Shows a command the packages of Python elsewhere, and hides the checkout and the system's copies
# of what the bundle brings.
HIDDEN = """
set -e
mount --bind "$PACKAGES" "$PYTHONPATH"
mount -t tmpfs none "$CHECKOUT"
for copy in /usr/lib/*/libprotobuf.so.* /usr/lib/*/libabsl_*.so.* /usr/lib/*/libsimdjson.so.*; do
  if [ -f "$copy" ]; then mount --bind /dev/null "$copy"; fi
done
exec "$@"
"""


class TestError(Exception):
    """What came out otherwise than it should."""


def expect(condition, message):
    if not condition:
        raise TestError(message)


def run(*command, environment=None, cwd=None, code=0):
    """What it prints; it must end with that code."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        check=False,
    )
    said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    expect(done.returncode == code, f"{command[0]} ended with {done.returncode}: {said}")
    return done.stdout + done.stderr


def torch_release() -> str:
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def may_hide() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def packed(options, folder: pathlib.Path) -> pathlib.Path:
    """The bundle, unpacked."""
    out = folder / "bundle.tar.gz"
    pack = ROOT / "scripts/pack_gpu_bundle.py"
    run(sys.executable, "-B", pack, "--out", out, f"{torch_release()}={options.bin}")
    with tarfile.open(out) as archive:
        archive.extractall(folder, filter="data")
    bundle = folder / "tessera-gpu"
    # An older libstdc++ in front of the machine's own would break its torch.
    brought = {path.name.split(".so")[0] for path in (bundle / "lib").iterdir()}
    expect("libprotobuf" in brought, f"lib/ has {sorted(brought)}")
    expect(not brought & {"libstdc++", "libc", "libgcc_s", "libtorch", "libc10"}, f"{brought}")
    return bundle


def surroundings(folder: pathlib.Path) -> tuple[dict[str, str], list[str]]:
    """The environment of a user there, whose Python's packages lie elsewhere than the checkout; and
    what a command is run behind."""
    packages = importlib.metadata.distribution("torch").locate_file("")
    seen = folder / "site-packages"
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder),
        "TESSERA_PYTHON": str(pathlib.Path(sys.executable).resolve()),
        "PYTHONPATH": str(seen),
    }
    if may_hide():
        seen.mkdir()
        environment |= {"CHECKOUT": str(ROOT), "PACKAGES": str(packages)}
        return environment, ["unshare", "--mount", "bash", "-c", HIDDEN, "bash"]
    seen.symlink_to(packages)
    return environment, []


def check_launcher(bundle, environment, prefix):
    """A torch that nothing was built for, and none at all, are named."""
    said = run(*prefix, bundle / "tessera-trainer", environment=environment, code=106)
    expect("one of --input and --export" in said, said)
    programs = bundle / f"torch-{torch_release()}"
    programs.rename(bundle / "torch-1.0")
    said = run(*prefix, bundle / "tessera-trainer", environment=environment, code=1)
    expect(f"torch is {torch_release()}; this bundle has programs for 1.0" in said, said)
    (bundle / "torch-1.0").rename(programs)
    bare = environment | {"PYTHONPATH": "", "TESSERA_PYTHON": "/usr/bin/python3"}
    said = run(bundle / "tessera-trainer", environment=bare, code=1)
    expect("has no torch; name a Python that has with TESSERA_PYTHON" in said, said)


def check_checklist(options, bundle, environment, prefix):
    """Its items come out well; one that fails is told, and keeps no other from being run."""
    folder = bundle.parent
    base = [*prefix, bundle / "checklist", "--device", "cpu", "--small", "--budget", 3600, "--out"]
    items = [] if options.all else ITEMS
    print(run(*base, folder / "good", *items, environment=environment, cwd=folder))
    results = json.loads((folder / "good/results.json").read_text())["items"]
    table = (folder / "good/results.md").read_text()
    for name in ITEMS:
        expect(results[name]["result"] == "ok", f"{name}: {results[name]}")
    expect(all(row["result"] in ("ok", "skipped") for row in results.values()), table)
    expect(table.count("| ok |") >= len(ITEMS), table)
    # Documents that the expected numbers were not made from, and are only one.
    (bundle / "assets/data/short.jsonl").write_text('{"text": "another document"}\n')
    command = [*base, folder / "bad", "isolation", "limit"]
    said = run(*command, environment=environment, cwd=folder, code=1)
    expect("failed: isolation" in said and "ok: limit" in said, said)


def check_traces():
    """Copies beside kernels, and not."""

    def event(category, begin, length):
        return {"ph": "X", "cat": category, "ts": begin, "dur": length}

    kernels = [event("kernel", 0, 10), event("kernel", 5, 10), event("kernel", 30, 10)]
    copies = [event("gpu_memcpy", 10, 10), event("gpu_memcpy", 50, 5)]
    share, time = traces.hidden_share({"traceEvents": [*copies, *kernels, {"ph": "M"}]})
    expect((share, time) == (5 / 15, 15), f"{share} of {time}")
    expect(traces.hidden_share({"traceEvents": kernels}) == (0.0, 0.0), "copies where are none")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    check_traces()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bundle = packed(options, folder)
        environment, prefix = surroundings(folder)
        check_launcher(bundle, environment, prefix)
        check_checklist(options, bundle, environment, prefix)


if __name__ == "__main__":
    main()
