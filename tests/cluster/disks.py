"""Disks of a test's own, small enough to be filled."""

import contextlib
import errno
import subprocess


class MountError(Exception):
    """This test may not mount."""


@contextlib.contextmanager
def mounted(directory, options):
    """A file system in memory for the length of the block; `directory` is made."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tessera-test", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise MountError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextlib.contextmanager
def full(directory):
    """Not a byte is left on the disk of the directory for the length of the block."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as failure:
                if failure.errno != errno.ENOSPC:
                    raise
    try:
        yield
    finally:
        path.unlink()
