"""What is served on a Ray cluster, and by how many: the arguments of `tanbr.fleet.ray:app`."""

from pydantic import Field

from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import RouterConfig
from tanbr.serve.config import ServeConfig, StartConfig
from tanbr.serve.web.config import HttpConfig


class ClusterConfig(StartConfig):
    """What is served on a Ray cluster, and by how many. Files are at the same place on every machine."""

    name: str = Field(default="tanbr", pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the application; its learner is called so, too."""
    replicas: int = Field(default=2, ge=1, le=10_000)
    """Replicas that answer."""
    cpus: int = Field(default=1, ge=1)
    """Cores of a replica: it answers as many batches at once."""
    learner_node: str = "__internal_head__"
    """Address of the machine that the learner runs on, where its state is; the cluster's head if not given."""
    serve: ServeConfig = Field(default_factory=ServeConfig)
    """How the model is served."""
    http: HttpConfig = Field(default_factory=HttpConfig)
    """What a client may ask."""
    router: RouterConfig | None = None
    """The router's settings."""
    monitor: MonitorConfig | None = None
    """The monitor's settings."""
