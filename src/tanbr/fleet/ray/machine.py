"""What Ray knows of replicas: whether they live."""

import ray

NAMESPACE = "serve"  # in which Ray Serve keeps its replicas


class RayMachine:
    """Replicas are known by the names of their actors."""

    def alive(self, member: str) -> bool:
        """Whether there is such an actor: a dead one has no name any more."""
        try:
            ray.get_actor(member, namespace=NAMESPACE)
        except ValueError:
            return False
        return True

    def end(self, member: str) -> None:
        """End the actor; Serve starts another."""
        try:
            ray.kill(ray.get_actor(member, namespace=NAMESPACE))
        except ValueError:
            return
