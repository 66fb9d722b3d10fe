"""Settings: one frozen tree from file, variables and flags. Import `Settings` and `load_settings` from here."""

from worker.settings.load import load_settings
from worker.settings.tree import Settings

__all__ = ["Settings", "load_settings"]
