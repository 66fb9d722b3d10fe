"""Finding the settings in force: file, then variables, then flags; every fault becomes one line that says where.

The only part of the settings that reads files and the environment. Values of secrets never enter a message.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from worker.errors import ConfigError
from worker.settings import fields
from worker.settings.faults import Where, first_fault, hint
from worker.settings.rules import problems
from worker.settings.tree import Settings

FILE = "gradstream.toml"
PREFIX = "GRADSTREAM_"
NOT_SETTINGS = frozenset({"GRADSTREAM_CONFIG", "GRADSTREAM_PASSPHRASE_FILE", "GRADSTREAM_REQUIRE"})

# Kubernetes puts these into every pod beside a service whose name begins with `gradstream`: not meant for us.
_SERVICE_LINK = re.compile(r"GRADSTREAM_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")

Layer = dict[str, Any]


def settings_file(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: named by flag, by variable, or found in the working directory; None where none is."""
    if config is not None:
        return config
    named = environ.get("GRADSTREAM_CONFIG")
    if named:
        return Path(named)
    return Path(FILE) if Path(FILE).exists() else None


def load_settings(
    config: Path | None, flags: Mapping[str, str], *, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings in force: `flags` ({"section.key": text}) beat variables beat the file.

    Raises `ConfigError` (one line: key, what is wrong, what is allowed, where it was set).
    """
    environ = os.environ if environ is None else environ
    path = settings_file(config, environ)
    text = _read(path) if path else ""
    file_layer = _parse(path, text) if path else {}
    variables, names = _variables(environ)
    flag_layer = _flags(flags)
    origins = dict.fromkeys(_dotted(file_layer), f"file {path}")
    origins.update({key: f"variable {name}" for key, name in names.items()})
    origins.update(dict.fromkeys(_dotted(flag_layer), "flag"))
    where = Where(origins, text)
    try:
        settings = Settings(layers=[flag_layer, variables, file_layer])  # type: ignore[call-arg]
    except ValidationError as error:
        raise ConfigError(first_fault(error, where)) from None
    for key, what in problems(settings, origins):
        raise ConfigError(f"{key}: {what}{where(key)}")
    return settings.located(origins)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f'settings file {path} does not exist: run "gradstream init" or name another') from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"settings file {path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"settings file {path} can not be read: {error.strerror}") from None


def _parse(path: Path, text: str) -> Layer:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"settings file {path} is not TOML: {error}") from None


def _dotted(layer: Layer) -> Iterator[str]:
    for section, content in layer.items():
        if isinstance(content, dict):
            yield from (f"{section}.{key}" for key in content)
        else:
            yield section


def _variables(environ: Mapping[str, str]) -> tuple[Layer, dict[str, str]]:
    """Return the layer of the variables, and the variable that set each key."""
    layer: Layer = {}
    names: dict[str, str] = {}
    known = {key.variable: key for key in fields.every()}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        if name not in known:
            if "__" not in name and _SERVICE_LINK.fullmatch(name):
                continue
            raise ConfigError(f"variable {name} is not a setting{hint(fields.nearest(name, list(known)))}")
        key = known[name]
        layer.setdefault(key.section, {})[key.name] = _decode(key, environ[name], f"variable {name}")
        names[key.dotted] = name
    return layer, names


def _flags(flags: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for dotted, value in flags.items():
        key = fields.find(dotted)
        if key is None:
            near = fields.nearest(dotted, [k.dotted for k in fields.every()])
            raise ConfigError(f"{dotted} is not a setting{hint(near)} (set by flag)")
        layer.setdefault(key.section, {})[key.name] = _decode(key, value, "flag")
    return layer


def _decode(key: fields.Key, text: str, origin: str) -> object:
    """Text stays text; numbers, switches and lists are read as JSON."""
    if key.text:
        return text
    try:
        value: object = json.loads(text)
    except ValueError:
        form = "JSON, " if key.name in ("features", "classes") else ""
        must = f"must be {form}{fields.allowed(key.info)}"
        raise ConfigError(f"{key.dotted}{fields.given(text)}: {must} (set by {origin})") from None
    return value
