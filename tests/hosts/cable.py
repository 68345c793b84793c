#!/usr/bin/env python3
"""A long cable between two network namespaces: each frame arrives later, and not always in order.

cable.py PID NAME PID NAME DELAY_MS JITTER_MS

Makes a TAP device NAME in the network of each process, moves frames between them, each after
DELAY_MS and up to JITTER_MS more, and ends when it is killed. What tc's netem does, which few
kernels here have.
"""

import ctypes
import fcntl
import heapq
import os
import pathlib
import random
import select
import struct
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MAX_FRAME = 1 << 16
MAX_UNDER_WAY = 4096  # frames; more are lost


def enter_network(pid):
    with pathlib.Path(f"/proc/{pid}/ns/net").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to the network of {pid}")


def open_tap(pid, name):
    enter_network(pid)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def carry(ends, delay, jitter):
    chance = random.Random(1)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way = []  # (due, number, end, frame)
    number = 0
    while True:
        pause = max(0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], pause)[0]:
            try:
                frame = os.read(end, MAX_FRAME)
            except OSError:  # the device is gone
                return
            if len(under_way) < MAX_UNDER_WAY:
                due = time.monotonic() + delay + chance.uniform(0, jitter)
                number += 1
                heapq.heappush(under_way, (due, number, other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            try:
                os.write(end, frame)
            except OSError:  # the device is down
                continue


def main():
    first, first_name, second, second_name, delay_ms, jitter_ms = sys.argv[1:]
    ends = [open_tap(first, first_name), open_tap(second, second_name)]
    print("ready", flush=True)
    carry(ends, int(delay_ms) / 1000, int(jitter_ms) / 1000)


if __name__ == "__main__":
    main()
