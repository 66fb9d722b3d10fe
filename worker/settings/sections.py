"""The sections of the settings tree: every key with its type, bounds, default and one sentence of meaning.

Values only: reads no file, no variable, no clock. The sentences here are the comments of the annotated settings file
and the rows of the documentation, so that neither can drift.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Secret, SecretStr, field_validator, model_validator

from worker.spec import Kind, Missing, Reduction, Role, Schedule

_YEARS_10 = 315_360_000
_TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
_TOPIC_RULE = "1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
_USERINFO = re.compile(r"(?<=://)\S*@")  # to the last @: a password may hold one that should have been escaped
_QUERY_SECRET = re.compile(r"(?<=[?&])(username|password|ssl_password)=[^&#]*", re.IGNORECASE)


class SecretUrl(Secret[str]):
    """An address whose user name and password are masked wherever it is shown."""

    def _display(self) -> str:
        shown = _USERINFO.sub("***@", self.get_secret_value())
        return _QUERY_SECRET.sub(r"\1=***", shown)


class Section(BaseModel):
    """Strict (a quoted number is not a number), frozen, no unknown keys, defaults under the same rules as values."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class FeatureSettings(Section):
    """One `[[model.features]]` table."""

    name: str = Field(
        min_length=1,
        max_length=256,
        description="key in the event's `features` object",
        json_schema_extra={"allowed": "1 to 256 printable characters"},
    )
    kind: Kind = Field(default="numeric", description="what the value is")
    missing: Missing = Field(
        default="mean",
        description="numeric: an absent value counts as the mean, as raw zero, or refuses the event",
    )
    max_abs: float = Field(default=1e12, gt=0, le=1e300, description="numeric: a larger magnitude refuses the event")
    bits: int = Field(default=10, ge=1, le=24, description="categorical: values are hashed into 2^bits buckets")

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("name holds a character that can not be printed")
        return name

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> "FeatureSettings":
        foreign = {"numeric": {"bits"}, "categorical": {"missing", "max_abs"}}[self.kind] & self.model_fields_set
        if foreign:
            raise ValueError(f"{min(foreign)} does not apply to a {self.kind} feature: remove it")
        return self


class Model(Section):
    """What is learned."""

    name: str = Field(
        default="model",
        pattern=r"^[a-z0-9-]{1,64}$",
        description="names the state: workers with the same name share one model",
        json_schema_extra={"allowed": "1 to 64 of a-z, 0-9 and '-'"},
    )
    task: Literal["binary", "regression", "multiclass"] = Field(default="binary", description="what a label is")
    classes: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), max_length=10_000, description="multiclass: names of the classes, in order"
    )
    features: Annotated[tuple[FeatureSettings, ...], Field(strict=False)] = Field(
        min_length=1, max_length=100_000, description="inputs of the model, in order"
    )

    @field_validator("features")
    @classmethod
    def _unique(cls, features: tuple[FeatureSettings, ...]) -> tuple[FeatureSettings, ...]:
        seen: set[str] = set()
        for i, feature in enumerate(features):
            if feature.name in seen:
                raise ValueError(f"{feature.name!r} (number {i + 1}) is there twice")
            seen.add(feature.name)
        return features


class Train(Section):
    """How it is learned."""

    optimizer: Literal["sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl"] = Field(
        default="sgd", description="rule of the step"
    )
    learning_rate: float = Field(default=0.01, gt=0, le=1e6, description="length of a step in standardised units")
    intercept_learning_rate: float | None = Field(
        default=None, gt=0, le=1e6, description="the intercept's own rate; not set: learning_rate"
    )
    schedule: Schedule = Field(default="constant", description="how the learning rate falls with the steps")
    standardize: bool = Field(default=True, description="subtract the running mean, divide by the running deviation")
    reduction: Reduction = Field(
        default="sequential",
        description="sequential: as one example at a time, whatever the batch size; mean, sum: one gradient a batch",
    )
    batch_size: int = Field(default=64, ge=1, le=100_000, description="examples in a step")
    kernel: Literal["auto", "numpy", "numba"] = Field(default="auto", description="what computes the recursion")
    l1: float = Field(default=0.0, ge=0, le=1e6, description="ftrl only")
    ftrl_beta: float = Field(default=1.0, ge=0, le=1e6, description="ftrl only")
    l2: float = Field(default=0.0, ge=0, le=1e6, description="pulls weights towards zero, never the intercept")
    clip_norm: float = Field(default=0.0, ge=0, le=1e12, description="largest norm of a gradient; 0: off")
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="seed of everything drawn at random")


class Stream(Section):
    """Where events come from."""

    mode: Literal["joined", "inline"] = Field(
        default="joined", description="joined: features and labels in two topics; inline: the label in the event"
    )
    features_topic: str = Field(
        default="features",
        pattern=_TOPIC,
        description="joined: feature events",
        json_schema_extra={"allowed": _TOPIC_RULE},
    )
    labels_topic: str = Field(
        default="labels",
        pattern=_TOPIC,
        description="joined: label events",
        json_schema_extra={"allowed": _TOPIC_RULE},
    )
    examples_topic: str = Field(
        default="examples",
        pattern=_TOPIC,
        description="inline: events that carry their label",
        json_schema_extra={"allowed": _TOPIC_RULE},
    )
    metrics_topic: str = Field(
        default="metrics",
        pattern=rf"{_TOPIC}|^$",
        description='loss and gradient norms as JSON; "": off',
        json_schema_extra={"allowed": f'{_TOPIC_RULE}; or ""'},
    )
    dead_letters_topic: str = Field(
        default="dead-letters",
        pattern=_TOPIC,
        description="refused records with their original bytes and the reason",
        json_schema_extra={"allowed": _TOPIC_RULE},
    )
    group_id: str = Field(
        default="",
        max_length=249,
        description='consumer group; "": gradstream-<model>',
        json_schema_extra={"allowed": "up to 249 characters"},
    )
    start: Literal["earliest", "latest"] = Field(default="earliest", description="where a fresh state begins to read")
    unknown_features: Literal["ignore", "refuse"] = Field(
        default="ignore",
        description="features in events that the model does not name; ignored ones are counted once a name",
    )
    max_event_bytes: int = Field(default=1_048_576, ge=16, le=104_857_600, description="a larger event is refused")
    client: Literal["kafka-python", "confluent-kafka"] = Field(default="kafka-python", description="Kafka client")
    max_idle_ms: int = Field(
        default=500, ge=0, le=3_600_000, description="how long one side of a pair waits for the other before going on"
    )
    content_type: str = Field(
        default="application/json",
        min_length=1,
        max_length=200,
        description="encoding of events without a content-type header",
        json_schema_extra={"allowed": "application/json"},
    )

    @property
    def event_topics(self) -> dict[Role, str]:
        """Return the topics that hold events by what they hold: features and labels, or examples."""
        if self.mode == "joined":
            return {"features": self.features_topic, "labels": self.labels_topic}
        return {"examples": self.examples_topic}


class Join(Section):
    """How features meet their labels (joined mode)."""

    window_s: float = Field(
        default=86400, ge=0, le=_YEARS_10, description="a label may be stamped this much later than its feature"
    )
    on_expiry: Literal["drop", "negative", "fake_negative_weighted"] = Field(
        default="drop", description="a feature without a label at the end of the window: drop it, learn it as label 0"
    )
    max_pending: int = Field(
        default=1_000_000, ge=1, le=1_000_000_000, description="events that wait, a partition; reading pauses there"
    )
    remember: int = Field(
        default=100_000, ge=0, le=1_000_000_000, description="records of each topic partition whose ids are remembered"
    )
    idle_labels: Literal["wait", "advance"] = Field(
        default="wait", description="advance: an idle label side follows the feature clock"
    )
    lateness_s: float = Field(
        default=0, ge=0, le=_YEARS_10, description="a label may be stamped this much earlier than its feature"
    )
    disorder_s: float = Field(
        default=0, ge=0, le=_YEARS_10, description="disorder of event times inside one topic partition"
    )
    max_future_s: float = Field(
        default=3600, ge=0, le=_YEARS_10, description="event time ahead of the record's own timestamp; more is refused"
    )


class CommitSection(Section):
    """When state and positions are made durable."""

    every_s: float = Field(default=1.0, ge=0.01, le=3600, description="longest time between commits")
    every_examples: int = Field(
        default=0, ge=0, le=1_000_000_000, description="examples after which a commit is due; 0: time alone"
    )
    turn_wait_ms: int = Field(
        default=2000, ge=1, le=600_000, description="how long a silent holder of the turn is respected"
    )


class KafkaSection(Section):
    """Where Kafka is."""

    bootstrap_servers: str = Field(
        default="localhost:9092",
        pattern=r"^[^\s,]+:\d{1,5}(,[^\s,]+:\d{1,5})*$",
        description="brokers to ask first",
        json_schema_extra={"allowed": "host:port, several with commas and no spaces"},
    )
    session_timeout_ms: int = Field(
        default=10_000, ge=1000, le=1_800_000, description="a silent worker loses its partitions after this"
    )
    group_instance_id: str = Field(
        default="",
        max_length=249,
        description="name of a static member, another for each worker (StatefulSets); empty: dynamic",
        json_schema_extra={"allowed": "up to 249 characters"},
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="encryption and authentication"
    )
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="", description="SASL: how to prove who it is"
    )
    sasl_username: str = Field(
        default="", max_length=1000, description="SASL: user", json_schema_extra={"allowed": "up to 1000 characters"}
    )
    sasl_password: SecretStr = Field(default=SecretStr(""), description="SASL: password; better given as a variable")
    ssl_cafile: str = Field(
        default="",
        description="file of trusted certificates; empty: those of the system",
        json_schema_extra={"allowed": "a path"},
    )
    ssl_certfile: str = Field(
        default="", description="file of the client's certificate", json_schema_extra={"allowed": "a path"}
    )
    ssl_keyfile: str = Field(
        default="", description="file of the client's key", json_schema_extra={"allowed": "a path"}
    )
    ssl_password: SecretStr = Field(default=SecretStr(""), description="password of the client's key")


class RedisSection(Section):
    """Where the state lives."""

    url: SecretUrl = Field(
        default=SecretUrl("redis://localhost:6379/0"),
        description="address and database; rediss is TLS; +sentinel, +cluster: host:port, several with commas",
        json_schema_extra={
            "allowed": "redis://host:port/db, rediss://, unix:///path, redis+sentinel://hosts/service/db, redis+cluster://hosts"
        },
    )
    username: str = Field(
        default="", max_length=1000, description="ACL user", json_schema_extra={"allowed": "up to 1000 characters"}
    )
    password: SecretStr = Field(default=SecretStr(""), description="password; better given as a variable")

    @field_validator("url")
    @classmethod
    def _scheme(cls, url: SecretUrl) -> SecretUrl:
        if not re.match(r"^(rediss?(\+sentinel|\+cluster)?://[^/\s]|unix://.*/)\S*$", url.get_secret_value()):
            raise ValueError("not an address of Redis")
        return url


class Observe(Section):
    """How it is watched."""

    http_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=253,
        pattern=r"^\S+$",
        description="address that /metrics, /healthz and /readyz answer on; 0.0.0.0 in a container",
        json_schema_extra={"allowed": "a host name or address"},
    )
    http_port: int = Field(
        default=9108, ge=0, le=65535, description="their port; 0: a free one, logged and in `status`"
    )
    metrics_every_ms: int = Field(
        default=1000, ge=0, le=3_600_000, description="time between messages on the metrics topic; 0: one a step"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least level logged")
    log_format: Literal["json", "console"] = Field(default="json", description="json for machines, console for people")


class Release(Section):
    """What outlasts Redis: the archived commit log and kept states."""

    store: str = Field(
        default="",
        max_length=4096,
        description='folder of the artifact store, created when it is needed; "": none',
        json_schema_extra={"allowed": "file:///… or a path"},
    )
    export_every_examples: int = Field(default=0, ge=0, description="examples between exports")
    producer_key: str = Field(default="gate.key", description="file of the producer's key")
    policy: str = Field(default="policy.toml", description="file of the policy")
    trust: str = Field(default="trust.json", description="file of trusted keys")
