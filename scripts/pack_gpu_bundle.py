"""Packs programs with what they link beyond libc, libstdc++ and the wheels of torch, the parity
fixtures, the benchmarks' peers and the checklist of docs/gpu-checklist.md into a tar.

    pack_gpu_bundle.py --out FILE.tar.gz TORCH=DIR [TORCH=DIR ...]

TORCH is the release that the programs of DIR were built against, as in 2.11. The tar holds one
folder, tessera-gpu: see tests/gpu/README.md.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_BYTES = 60 << 20
PROGRAMS = ("tessera-trainer", "engine_benchmark", "cuda_kernels_test")
# Of every Linux that runs a torch wheel.
BASE_LIBRARIES = re.compile(
    r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so"
)
SOURCES = (
    "benchmarks/generation/peer.py",
    "benchmarks/training/peers.py",
    "tests/gpu/*.py",
    "tests/parity/*.py",
    "tests/parity/expected/*.json",
    "tests/support/*.py",
    "docs/gpu-checklist.md",
    "LICENSE",
)


class PackError(Exception):
    """What keeps the bundle from being whole."""


def check(*command) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PackError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def libraries_of(program: pathlib.Path) -> list[pathlib.Path]:
    """What it links that neither the base system nor a wheel has. What wheels link is theirs."""
    found = []
    wanted = set(re.findall(r"\(NEEDED\).*\[(.*)\]", check("readelf", "-d", program)))
    paths = dict(re.findall(r"^\s*(\S+) => (/\S+)", check("ldd", program), re.MULTILINE))
    while wanted:
        name = wanted.pop()
        path = pathlib.Path(paths.get(name, ""))
        if BASE_LIBRARIES.match(name) or "site-packages" in path.parts or path in found:
            continue
        if name not in paths:
            raise PackError(f"{program} links {name}, which is not on this machine")
        found.append(path)
        wanted |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", check("readelf", "-d", path)))
    return found


def copy_stripped(source: pathlib.Path, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    check("strip", "--strip-unneeded", target)


def add_programs(bundle: pathlib.Path, version: str, directory: pathlib.Path) -> None:
    # Tests of a build lie beside its programs.
    places = (directory, directory.parent / "tests")
    found = {n: p / n for n in PROGRAMS for p in places if (p / n).is_file()}
    if PROGRAMS[0] not in found:
        raise PackError(f"there is no {PROGRAMS[0]} in {directory}")
    for name, path in found.items():
        copy_stripped(path, bundle / f"torch-{version}" / name)
        if not (bundle / name).is_symlink():
            (bundle / name).symlink_to("launch.sh")
        for library in libraries_of(path):
            target = bundle / "lib" / library.name
            if not target.exists():
                copy_stripped(library, target)


def add_sources(bundle: pathlib.Path) -> None:
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            target = bundle / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for name in ("launch.sh", "checklist"):
        shutil.copyfile(ROOT / "tests/gpu" / name, bundle / name)
        (bundle / name).chmod(0o755)
    shutil.copyfile(ROOT / "tests/gpu/README.md", bundle / "README.md")
    check(sys.executable, "-B", ROOT / "tests/parity/make_assets.py", bundle / "assets")
    described = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    (bundle / "VERSION").write_text(described.stdout or "unknown\n")


def pack(out: pathlib.Path, programs: list[tuple[str, pathlib.Path]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        bundle = pathlib.Path(scratch) / "tessera-gpu"
        bundle.mkdir()
        for version, directory in programs:
            add_programs(bundle, version, directory)
        add_sources(bundle)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w:gz") as archive:
            archive.add(bundle, bundle.name)
    size = out.stat().st_size
    if size > MAX_BYTES:
        raise PackError(f"{out} takes {size} bytes, more than {MAX_BYTES}")
    print(f"{out}: {size / (1 << 20):.1f} MiB")


def named(text: str) -> tuple[str, pathlib.Path]:
    version, _, directory = text.partition("=")
    if not re.fullmatch(r"\d+\.\d+", version) or not directory:
        raise argparse.ArgumentTypeError(f"{text}: TORCH=DIR was expected, as in 2.11=build/bin")
    return version, pathlib.Path(directory)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("programs", nargs="+", type=named, metavar="TORCH=DIR")
    options = parser.parse_args()
    try:
        pack(options.out, options.programs)
    except PackError as error:
        sys.exit(f"pack_gpu_bundle: {error}")


if __name__ == "__main__":
    main()
