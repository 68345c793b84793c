#!/usr/bin/env python3
"""The chaos of coordinator_chaos over PostgreSQL: two coordinators of which one leads, killed at
random under load, on a server of its own that is restarted (pg_ctl -m immediate) meanwhile.

postgres_chaos.py --chaos PROGRAM --tesserad PROGRAM [--kills N] [--restart-every S] [--seed N]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from postgres import postgres

DATABASE = "chaos"
# What of the tables PostgreSQL does not see to itself.
BREACHES = {
    "jobs without events": "SELECT count(*) FROM jobs j WHERE NOT EXISTS "
    "(SELECT 1 FROM events e WHERE e.job = j.number)",
}


def restart_often(server, pause, over):
    count = 0
    while not over.wait(pause):
        server.restart()
        count += 1
    print(f"the database was restarted {count} times")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chaos", required=True)
    parser.add_argument("--tesserad", required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--restart-every", type=float, default=5, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0, help="0: one at random, which is printed")
    options = parser.parse_args()
    with postgres() as server, tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        server.sql(f"CREATE DATABASE {DATABASE}")
        process = subprocess.Popen(
            [
                *(options.chaos, "--tesserad", options.tesserad, "--dir", directory),
                *("--postgres", server.url(database=DATABASE), "--seed", str(options.seed)),
                *("--kills", str(options.kills)),
            ]
        )
        over = threading.Event()
        restarts = threading.Thread(
            target=restart_often, args=(server, options.restart_every, over)
        )
        restarts.start()
        code = process.wait()
        over.set()
        restarts.join()
        for what, query in BREACHES.items():
            count = server.sql(query, DATABASE)
            if count != "0":
                print(f"BROKEN: {count} {what}")
                code = code or 1
        if code:
            for log in sorted(pathlib.Path(directory).glob("*/log")):
                print(f"---- {log}\n{log.read_text()[-4000:]}")
    sys.exit(code)


if __name__ == "__main__":
    main()
