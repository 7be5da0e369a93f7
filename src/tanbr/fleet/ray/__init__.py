"""Many replicas on a Ray cluster: `app` is what a Ray Serve configuration names as `tanbr.fleet.ray:app`."""

from tanbr.errors import ConfigError

try:
    import ray
    from ray import serve as ray_serve
except ImportError:  # pragma: no cover - where ray is installed
    raise ConfigError('serving on Ray needs Ray Serve: pip install "tanbr[ray]"') from None

from tanbr.fleet.ray.cluster import app, run
from tanbr.fleet.ray.learner import ClusterConfig

__all__ = ["ClusterConfig", "app", "ray", "ray_serve", "run"]
