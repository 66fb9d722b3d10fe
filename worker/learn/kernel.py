"""What computes the recursion: numpy, which is always there, or machine code by numba (the extra `fast`).

Decides by name and imports neither: commands and workers that learn with numpy never pay for numba.
"""

from importlib.util import find_spec
from typing import Literal

from worker.errors import ConfigError
from worker.spec import Spec

Kernel = Literal["numpy", "numba"]


def choose_kernel(setting: Literal["auto", "numpy", "numba"], spec: Spec) -> Kernel:
    """Return the kernel for `train.kernel`: `auto` is numba where it is installed and there is a recursion to compute.

    Raises `ConfigError` where numba is asked for and can not be had.
    """
    recursive, installed = spec.reduction == "sequential", find_spec("numba") is not None
    if setting == "auto":
        return "numba" if recursive and installed else "numpy"
    if setting == "numba" and not recursive:
        raise ConfigError(
            f'train.kernel "numba" computes the recursion of reduction "sequential", and train.reduction is '
            f'"{spec.reduction}": use "auto" or "numpy"'
        )
    if setting == "numba" and not installed:
        raise ConfigError("train.kernel \"numba\" needs the package numba: pip install 'gradstream[fast]'")
    return setting
