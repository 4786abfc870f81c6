"""`Throttled`: a request that a node's quota does not cover. Times are seconds."""

from sluicegate.errors import SluicegateError

__all__ = ["Throttled"]


class Throttled(SluicegateError):
    """`user` of `service` has used up its `resource` on this node; retry in `retry_after`.

    Nothing was charged. The node counted the refusal, so that the central learns of the demand.
    """

    def __init__(self, service: str, user: str, resource: str, retry_after: float) -> None:
        super().__init__(
            f"user {user!r} of service {service!r} has used up its {resource!r} quota, "
            f"retry in {retry_after:.3g} s"
        )
        self.service = service
        self.user = user
        self.resource = resource
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type["Throttled"], tuple[str, str, str, float]]:
        return type(self), (self.service, self.user, self.resource, self.retry_after)
