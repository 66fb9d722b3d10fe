"""Options that every command has, and the settings they lead to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.errors import ConfigError

if TYPE_CHECKING:
    from worker.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file [default: $GRADSTREAM_CONFIG or gradstream.toml]"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; as often as needed"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
# Looked for by the entry point; declared here so that every command accepts and shows it.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks")]


def flags(sets: list[str] | None, **named: object) -> dict[str, str]:
    """Return {dotted key: text} of `--set` and of flags that name a setting (`section__key=value`, None: not given).

    Raises `ConfigError` where a `--set` is no `section.key=value`.
    """
    found: dict[str, str] = {}
    for item in sets or ():
        key, equals, value = item.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f"--set takes section.key=value, such as train.learning_rate=0.05; got {key}")
        found[key.strip()] = value
    found.update({name.replace("__", ".", 1): str(value) for name, value in named.items() if value is not None})
    return found


def settings(config: Path | None, sets: list[str] | None, **named: object) -> "Settings":
    """Load the settings in force for a command."""
    from worker.settings import load_settings

    return load_settings(config, flags(sets, **named))
