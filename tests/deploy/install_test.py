#!/usr/bin/env python3
"""`cmake --install` makes a tree that runs wherever it is moved to, with units that systemd takes.

install_test.py --build DIR --assets DIR
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import pyarrow.parquet
from deployed import DEPLOY, check, cluster, expect, run, run_job, sft_job

PROGRAMS = (
    "tessera",
    "tesserad",
    "tessera-agent",
    "tessera-data",
    "tessera-rewards",
    "tessera-trainer",
)
UNITS = ("tesserad.service", "tessera-agent.service")
# Of 100, as systemd-analyze counts what a unit may do; the agent needs devices, and more.
MOST_EXPOSED = {"tesserad.service": 15, "tessera-agent.service": 22}


def linked(prefix):
    """What the dynamic linker has work with."""
    return [*(prefix / "bin" / name for name in PROGRAMS), prefix / "lib/libtessera_parquet.so"]


def libraries(path):
    """name -> path of each library that the program is linked to."""
    found = dict(re.findall(r"^\s*(\S+) => (\S+)", check("ldd", path), re.MULTILINE))
    missing = [name for name, where in found.items() if where == "not"]
    expect(not missing, f"{path.name} does not find {missing}")
    return found


def test_programs(prefix):
    version = check(prefix / "bin/tessera", "version").split()[-1]
    for name in ("tesserad", "tessera-agent"):
        expect(version in check(prefix / "bin" / name, "--version"), f"{name} has another version")
    expect({path.name for path in (prefix / "bin").iterdir()} == set(PROGRAMS), "bin/")
    for path in linked(prefix):
        for library, where in libraries(path).items():
            if re.match(r"libtorch|libc10|libarrow|libparquet", library):
                ours = pathlib.Path(where).resolve().is_relative_to(prefix.resolve())
                expect(ours or "cuda" in where, f"{path.name} takes {library} from {where}")


def test_job(prefix, assets):
    with cluster(prefix / "bin") as service:
        rows = [json.loads(line) for line in (assets / "data/short.jsonl").open()]
        data = service.directory / "short.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), data)
        job = sft_job(assets, service.directory / "out", 2) | {"data": {"train": str(data)}}
        code, events, errors = run_job(service, "run", str(service.write_job("job", job)))
        expect(code == 0, f"a job of the installed programs: {errors}")
        expect(sum("step" in event for event in events) == 4, f"{len(events)} events")


def test_units(root):
    """verify sees the programs where the units name them, below a root of its own."""
    units = root / "usr/lib/systemd/system"
    for target in ("sysinit", "basic", "shutdown", "multi-user", "network-online"):
        (units / f"{target}.target").write_text("[Unit]\nDescription=A stand-in\n")
    check("systemd-analyze", "verify", "--man=no", f"--root={root}", *UNITS)
    broken = units / "broken.service"
    broken.write_text(
        (units / UNITS[0]).read_text().replace("ExecStart=tesserad", "ExecStart=none")
    )
    code, _ = run("systemd-analyze", "verify", "--man=no", f"--root={root}", broken.name)
    expect(code != 0, "verify takes a unit without a program")
    for name, most in MOST_EXPOSED.items():
        command = ("systemd-analyze", "security", "--offline=true", f"--threshold={most}")
        check(*command, DEPLOY / "systemd" / name)
    for name in ("prolog.sh", "epilog.sh"):
        expect(
            (root / "usr/share/tessera/slurm" / name).stat().st_mode & 0o111, f"{name} cannot run"
        )
    users = (root / "usr/lib/sysusers.d/tessera.conf").read_text()
    expect(re.search(r"^u tessera ", users, re.MULTILINE), "no user tessera is made")


def depends(packages):
    """The installed packages that these need, and they themselves."""
    table = {}
    for line in check(
        "dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\n"
    ).splitlines():
        name, needs = line.split("\t")
        table[name] = {
            word.split()[0].split(":")[0] for word in re.split(r"[,|]", needs) if word.split()
        }
    closure, todo = set(), set(packages)
    while todo:
        closure |= todo
        todo = {need for name in todo for need in table.get(name, ())} - closure
    return closure


def test_packages_of_the_images(prefix):
    """What the Containerfile installs holds every library of the system that a program needs."""
    text = (DEPLOY / "container/Containerfile").read_text()
    (listed,) = re.findall(r"--no-install-recommends \\\n(.*?)&&", text, re.DOTALL)
    there = depends(listed.replace("\\", " ").split())
    needed = {}
    for file in linked(prefix):
        for where in libraries(file).values():
            path = pathlib.Path(where).resolve()
            if not path.is_relative_to(prefix.resolve()):
                needed[str(path)] = file.name
    # A merged /usr: the package may know the file under its old name.
    names = [name for path in needed for name in (path, path.removeprefix("/usr"))]
    found = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True).stdout
    owners = {line.split(": ")[1]: line.split(":")[0] for line in found.splitlines()}
    for path, program in needed.items():
        owner = owners.get(path) or owners.get(path.removeprefix("/usr"))
        expect(owner in there, f"{program} needs {path} of {owner}, which the image has not")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        first, root = pathlib.Path(folder, "first"), pathlib.Path(folder, "second")
        check("cmake", "--install", options.build, "--prefix", first / "usr", "--strip")
        first.rename(root)
        test_programs(root / "usr")
        print("ok: programs", flush=True)
        test_job(root / "usr", options.assets)
        print("ok: a job", flush=True)
        test_units(root)
        print("ok: units", flush=True)
        release = pathlib.Path("/etc/os-release").read_text()
        if "ID=debian\n" in release and 'VERSION_ID="12"' in release:
            test_packages_of_the_images(root / "usr")
            print("ok: packages of the images", flush=True)


if __name__ == "__main__":
    main()
