"""The recipe of this process: what its settings, packages and source files make of events. Read once, at start."""

import platform
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable

import torch
from blake3 import blake3

from worker.recipe import Recipe
from worker.settings import Settings
from worker.start import join_rules

_PACKAGES = ("gradstream", "numpy", "torch")
_COMPUTES = ("spec.py", "stream", "learn")  # what stands between bytes and state; no adapter, no loop


def recipe_here(settings: Settings, kernel: str) -> Recipe:
    """Return how this process would learn under these settings."""
    stream = settings.stream
    return Recipe(
        spec=settings.spec().document(),
        hyper=asdict(settings.hyper()),
        roles={topic: role for role, topic in stream.event_topics.items()},
        decoding={
            "max_event_bytes": stream.max_event_bytes,
            "max_future_s": settings.join.max_future_s,
            "unknown_features": stream.unknown_features,
        },
        join=asdict(join_rules(settings)),
        kernel=kernel,
        software=software(kernel),
        code=code(),
    )


def software(kernel: str) -> dict[str, str]:
    """Return the version of every package that has a part in the numbers, of Python, and the kind of machine.

    `cpu` is what torch's products are computed with (AVX2, AVX512, …): another one may round otherwise.
    """
    packages = (*_PACKAGES, "numba", "llvmlite") if kernel == "numba" else _PACKAGES
    known = {package: version(package) for package in packages}
    cpu = str(torch.backends.cpu.get_cpu_capability())
    return known | {"python": platform.python_version(), "machine": platform.machine(), "cpu": cpu}


@cache
def code() -> str:
    """Return the BLAKE3 (hex) over names and bytes of the source files that compute."""
    hasher, root = blake3(), resources.files("worker")
    for name, file in sorted(_sources(root)):
        content = file.read_bytes()
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()


def _sources(root: Traversable) -> Iterator[tuple[str, Traversable]]:
    for name in _COMPUTES:
        found = root.joinpath(name)
        files = [found] if found.is_file() else [f for f in found.iterdir() if f.name.endswith(".py")]
        yield from ((f"{name}/{file.name}", file) for file in files)
