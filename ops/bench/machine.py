"""What the figures were measured on. Reads; changes nothing but the cores of processes that the bench started."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, object]:
    """Return the machine, the versions that matter and how busy it was (load average of the last minute)."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "kafka-python", "redis", "msgspec")},
        "load_average": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def worker_core() -> int | None:
    """Return the core that a measured worker gets to itself; None where processes can not be kept on one."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[0] if len(cores) > 1 else None


def other_cores() -> str:
    """Return all other cores as Docker names them; "" where there is no choice."""
    own = worker_core()
    return "" if own is None else ",".join(str(core) for core in sorted(os.sched_getaffinity(0)) if core != own)


def processor_seconds(pid: int) -> float:
    """Return the seconds for which a running process has had the processor; 0 where this can not be read."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def keep_on_core(pid: int) -> None:
    """Keep a process (and the threads that it starts from now on) on the worker's core."""
    core = worker_core()
    if core is not None:
        os.sched_setaffinity(pid, {core})
