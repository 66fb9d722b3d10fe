"""`gradstream config`: settings in force and where each came from."""

from typing import TYPE_CHECKING

from worker.cli.options import Config, Debug, Json, Set, settings

if TYPE_CHECKING:
    from worker.settings import Settings


def config(config: Config = None, sets: Set = None, as_json: Json = False, _debug: Debug = False) -> None:
    """Show the settings in force and where they came from.

    Secrets are masked.

    Example:
      gradstream config
      gradstream config --set train.learning_rate=0.05 --json
    """
    from worker.cli.output import print_json

    loaded = settings(config, sets)
    rows = _rows(loaded)
    if as_json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        _print_table(rows)


def _rows(loaded: "Settings") -> list[tuple[str, object, str]]:
    from worker.settings.annotated import offered

    shown, origins = loaded.shown(), loaded.origins()
    return [(key.dotted, shown[key.dotted], origins[key.dotted]) for key in offered()]


def _print_table(rows: list[tuple[str, object, str]]) -> None:
    from rich.text import Text

    from worker.cli.output import console, table

    made = table("key", "value", "origin")
    section = ""
    for key, value, origin in rows:
        if section and not key.startswith(f"{section}."):
            made.add_section()
        section = key.partition(".")[0]
        made.add_row(Text(key), Text(_value(value)), Text(origin, style="dim" if origin == "default" else "bold"))
    console().print(made)


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "\n".join(_feature(f) if isinstance(f, dict) else str(f) for f in value)
    return str(value)


def _feature(feature: dict[str, object]) -> str:
    rest = f"{feature['bits']} bits" if feature["kind"] == "categorical" else f"missing: {feature['missing']}"
    return f"{feature['name']} ({feature['kind']}, {rest})"
