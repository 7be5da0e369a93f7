"""What is served on a Ray cluster, and by how many: the arguments of `tanbr.fleet.ray:app`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Strict

from tanbr.config import Section
from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import RouterConfig
from tanbr.serve.config import ServeConfig
from tanbr.serve.web.config import HttpConfig

File = Annotated[Path, Strict(strict=False)]  # Ray's configuration files have strings for paths


class ClusterConfig(Section):
    """What is served on a Ray cluster, and by how many."""

    name: str = Field(default="tanbr", pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the application; its learner is called so, too."""
    checkpoint: str | None = None
    """Folder of an MoE checkpoint, or a list of experts, at one place on every machine; or else the embedded model."""
    experts: tuple[str, ...] = ()
    """Fine-tuned copies, or adapters, of the checkpoint."""
    blend_only: Literal["all", "ffn"] | None = None
    """With experts over a base: what is blended."""
    state: File = Path("out/serve")
    """Folder for what is learned, on a disk that the learner finds wherever it is started again."""
    history: File | None = None
    """Past requests that teach the monitor."""
    survey: File | None = None
    """What `tanbr survey` wrote, for the start blend."""
    warm_start: File | None = None
    """What `tanbr survey` wrote, for the router."""
    groups: File | None = None
    """What `tanbr groups` wrote: the router learns over groups of experts."""
    adopt: bool = False
    """Go on with the state of another checkpoint."""
    force: bool = False
    """Serve experts that should not be merged."""
    replicas: int = Field(default=2, ge=1, le=10_000)
    """Replicas that answer."""
    cpus: int = Field(default=1, ge=1)
    """Cores of a replica: it answers as many batches at once."""
    learner_node: str = "__internal_head__"
    """Address of the machine that the learner runs on, where its state is; the cluster's head if not given."""
    token_file: File | None = None
    """File with the clients' token (or set TANBR_TOKEN)."""
    admin_token_file: File | None = None
    """File with the operators' token (or set TANBR_ADMIN_TOKEN)."""
    serve: ServeConfig = Field(default_factory=ServeConfig)
    """How the model is served."""
    http: HttpConfig = Field(default_factory=HttpConfig)
    """What a client may ask."""
    router: RouterConfig | None = None
    """The router's settings."""
    monitor: MonitorConfig | None = None
    """The monitor's settings."""
