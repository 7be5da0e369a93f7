"""Every error a user can cause. The command line prints its one sentence and exits with code 2."""


class TanbrError(Exception):
    """Something the user can put right; the message says what was expected, what came, and what to do."""


class ConfigError(TanbrError):
    """A configuration file or option is wrong."""


class InputError(TanbrError, ValueError):
    """A task mix, blend, reward or text is not what it must be."""


class DecisionError(TanbrError, LookupError):
    """A decision id is unknown, was told already, or belongs to another router."""


class StateError(TanbrError):
    """A saved state is corrupt, truncated, of a newer version or of another configuration."""


class SettingsError(StateError):
    """A saved state was made with settings that it cannot go on without."""


class CheckpointError(TanbrError):
    """A model checkpoint is missing, corrupt, unsafe or of an architecture that cannot be merged."""


class DataError(TanbrError):
    """A data set is missing, incomplete or holds what its task does not allow."""


class OutputError(TanbrError):
    """A result cannot be written where the user asked for it."""
