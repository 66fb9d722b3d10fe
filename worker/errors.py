"""All errors. One class, one reaction; the message says what happened, where, and what to do.

Imports nothing. Messages carry positions and ids, never payloads.
"""


class GradstreamError(Exception):
    """An error a user can act on: shown as one line, ends the command with `exit_code`."""

    exit_code = 1


class ConfigError(GradstreamError):
    """Settings, usage, or an unknown key, version or file; found before the group is joined."""

    exit_code = 2


class VerificationFailed(GradstreamError):
    """Bytes, digests, signatures or lineage are not what they are said to be."""

    exit_code = 4


class Conflict(GradstreamError):
    """Somebody else was there first, with something else."""

    exit_code = 5


class Unreachable(GradstreamError):
    """Kafka or Redis did not answer within the deadline: `Transient` errors become this when time is up."""

    exit_code = 6


class Transient(GradstreamError):
    """Kafka or Redis did not answer *this time*: back off, try again within a deadline."""

    exit_code = 6


class StateMissing(GradstreamError):
    """There is no state where there has to be one. Never a silent fresh start."""

    exit_code = 7


class StateCorrupted(GradstreamError):
    """Stored bytes are not what was written. Never a guess."""

    exit_code = 7


class OffsetsLost(GradstreamError):
    """Kafka no longer has (or never had) the records that the positions point to."""

    exit_code = 7


class Stalled(GradstreamError):
    """Nothing can move on by itself, and the records that could free it will not come."""

    exit_code = 8


class NonFiniteStep(GradstreamError):
    """Too many steps in a row were not finite: the model has diverged."""

    exit_code = 1
