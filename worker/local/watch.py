"""Runs one program and ends it when the process that asked for it ends. A script of its own: imports nothing of ours.

Started as `python -I -S watch.py GRACE_S PROGRAM ARGUMENT…` with a pipe as standard input. The pipe closes when the
starter closes it and also when the starter is killed, so no server of a demo outlives the demo, on Linux and macOS.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def stop(program: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask the program to end, and kill it when it has not after `grace_s`."""
    program.terminate()
    try:
        program.wait(grace_s)
    except subprocess.TimeoutExpired:
        program.kill()


def stop_at_end_of_input(program: "subprocess.Popen[bytes]", grace_s: float) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    stop(program, grace_s)


def main() -> None:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - the starter's own command, no shell
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    threading.Thread(target=stop_at_end_of_input, args=(program, grace_s), daemon=True).start()
    code = program.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
