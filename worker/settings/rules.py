"""Rules between settings, and what this version does not have yet. Refused, never ignored.

Each problem is (dotted key, what is wrong and what to do); the loader adds where the value was set.
"""

from collections.abc import Iterator, Mapping

from worker.settings.tree import Settings

Problem = tuple[str, str]

# What the tree knows by name and this version can not do: {key: (values that are there)}.
BUILT: Mapping[str, tuple[str, ...]] = {
    "model.task": ("binary", "regression"),
    "train.optimizer": ("sgd",),
    "stream.client": ("kafka-python",),
    "stream.content_type": ("application/json",),
    "join.on_expiry": ("drop", "negative"),
}


def problems(settings: Settings, origins: Mapping[str, str]) -> Iterator[Problem]:
    """Yield every broken rule, what is not built first."""
    yield from _not_built(settings, origins)
    yield from _kernel(settings)
    yield from _topics(settings)
    yield from _security(settings)


def _not_built(settings: Settings, origins: Mapping[str, str]) -> Iterator[Problem]:
    for dotted, built in BUILT.items():
        section, _, name = dotted.partition(".")
        value = getattr(getattr(settings, section), name)
        if value not in built:
            yield dotted, f'"{value}" is not in this version of gradstream: use {" or ".join(built)}'
    if settings.model.classes:
        yield "model.classes", "classes belong to task multiclass, which is not in this version: remove it"
    if settings.train.l1 != 0.0:
        yield "train.l1", "l1 needs optimizer ftrl, which is not in this version: set it to 0.0"
    if settings.train.ftrl_beta != 1.0:
        yield "train.ftrl_beta", "ftrl_beta needs optimizer ftrl, which is not in this version: remove it"
    for dotted in origins:
        if dotted.startswith("release.") and dotted != "release.store":
            yield dotted, "releases are not in this version of gradstream: remove it"
    if "://" in settings.release.store and not settings.release.store.startswith("file:///"):
        yield "release.store", "object stores are not in this version of gradstream: use file:///… or a path"


def _kernel(settings: Settings) -> Iterator[Problem]:
    train = settings.train
    if train.kernel == "numba" and train.reduction != "sequential":
        needs = f'"numba" computes reduction sequential only, and train.reduction is {train.reduction}'
        yield "train.kernel", f"{needs}: use auto or numpy"


def _topics(settings: Settings) -> Iterator[Problem]:
    """One topic with two roles would be read as its own output, or join a topic with itself."""
    s = settings.stream
    events = ("features_topic", "labels_topic") if s.mode == "joined" else ("examples_topic",)
    roles: dict[str, str] = {}
    for role in (*events, "dead_letters_topic", "metrics_topic"):
        topic = getattr(s, role)
        if topic in (".", ".."):
            yield f"stream.{role}", f'"{topic}" is not a topic name'
        if topic and topic in roles:
            yield f"stream.{role}", f'"{topic}" is also stream.{roles[topic]}: give each its own topic'
        roles.setdefault(topic, role)


def _security(settings: Settings) -> Iterator[Problem]:
    """A password that nothing uses is a connection that is less safe than its owner believes."""
    k = settings.kafka
    sasl = k.security_protocol.startswith("SASL_")
    ssl = k.security_protocol.endswith("SSL")
    given = {"sasl_mechanism": k.sasl_mechanism, "sasl_username": k.sasl_username}
    given["sasl_password"] = k.sasl_password.get_secret_value()
    for name, value in given.items():
        if sasl and not value:
            yield f"kafka.{name}", f"not set, and security_protocol {k.security_protocol} needs it"
        if value and not sasl:
            yield f"kafka.{name}", f"has no effect with security_protocol {k.security_protocol}: use SASL_SSL"
    given = {"ssl_cafile": k.ssl_cafile, "ssl_certfile": k.ssl_certfile, "ssl_keyfile": k.ssl_keyfile}
    given["ssl_password"] = k.ssl_password.get_secret_value()
    for name, value in given.items():
        if value and not ssl:
            yield f"kafka.{name}", f"has no effect with security_protocol {k.security_protocol}: use SSL or SASL_SSL"
    if k.ssl_keyfile and not k.ssl_certfile:
        yield "kafka.ssl_certfile", "not set, and ssl_keyfile needs it"
