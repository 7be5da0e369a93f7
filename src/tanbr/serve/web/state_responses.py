"""What those who watch the server get, for the OpenAPI document: `views.py` writes the answers themselves."""

from typing import Literal

from tanbr.serve.web.responses import Given


class RaisedAlarm(Given):
    """Something an operator should know."""

    time: float
    slot: int
    text: str


class ServedModel(Given):
    """What is served."""

    name: str
    family: str
    kind: Literal["classifier", "text"]
    experts: int
    expert_names: list[str]
    """What each expert was trained for, in the order of every blend."""
    sites: int
    models: int
    """Most that answer side by side."""
    labels: list[str]
    loaded_bytes: int
    full_bytes: int
    precision: str
    device: str


class WhyServed(Given):
    """Why the served blend was chosen, by what the router believed then."""

    sentence: str
    mean: float | None
    """Reward that it expected of the blend."""
    uncertainty: float | None
    """How far off that may be."""
    bound: float | None
    """The most that the blend seemed able to earn."""


class PanelModel(Given):
    """One of the models that answer side by side."""

    merge_version: int
    blend: list[float]
    tasks: list[str]
    """That are sent to it."""
    expected: float
    """Share of the requests that these should be."""
    requests: int
    """That it has answered in this slot."""
    reward: float | None
    """Mean of the rewards that came for it."""


class Exploration(Given):
    """What leaving the start blend has cost and may cost, by the router's own belief; rewards are summed over slots."""

    slots: int
    """Whose rewards are known."""
    explored: int
    """Of them, those that served another blend than the baseline."""
    swaps: int
    """Times that another blend was chosen than the slot before."""
    baseline: float
    """What the baseline would have earned."""
    gain: float
    """What was earned beyond it; below 0, what exploring has cost."""
    budget: float
    """The most that it may cost."""
    balance: float
    """gain + budget: below 0 the baseline is served."""


class StateResponse(Given):
    """What the server does now. Vectors run over `tasks` or over the experts."""

    slot: int
    merge_version: int
    tasks: list[str]
    task_mix: list[float]
    """ψ: the share of each task that the slot's blend was chosen for."""
    blend: list[float]
    """x: the weight of each expert, as served."""
    reward: list[float | None]
    """Per task, of the last slot whose reward is known; null where a task was not seen."""
    counts: list[float]
    """Requests behind each."""
    estimated_regret: float | None
    """How far, by the router's own belief, the blend is below its best."""
    requests: int
    """Answered in this slot."""
    answered: int
    """Since the process started."""
    queue: int
    phase: str
    """Who chooses the blend: waiting for rewards, learning, pinned or fixed."""
    why: WhyServed | None
    """Null if the router did not choose the blend."""
    pinned: bool
    shares: dict[str, float]
    """Share of each source in the last known rewards."""
    alarms: list[RaisedAlarm]
    last_merge_seconds: float | None
    last_pause_seconds: float | None
    uptime: float
    slot_requests: int | None
    slot_seconds: float | None
    model: ServedModel
    models: list[PanelModel]
    """Those that answer; `merge_version` and `blend` are the first one's."""
    exploration: Exploration | None
    """Null where a panel, a pin or another router has no accounts to show."""


class Slot(Given):
    """One slot."""

    slot: int
    merge_version: int
    task_mix: list[float]
    estimate: list[float] | None
    """The mix that was seen, once the slot has ended."""
    blend: list[float]
    reward: list[float | None]
    counts: list[float]
    mean_reward: float | None
    estimated_regret: float | None
    """How far the router then believed the blend to be below its best; null if the choice was not its own."""
    requests: int
    unknown: float | None
    """Share of requests unlike any task."""
    started: float
    ended: float | None
    told: bool
    """Whether the router has learned from it."""
    reason: str
    """Why the slot serves its blend: chosen, start, best, kept, pinned, rolled back or failed."""
    note: str
    """More about that, in words."""


class SlotsResponse(Given):
    """Slots, newest first."""

    slots: list[Slot]


class MergeVersion(Given):
    """A merge version that can be rolled back to."""

    merge_version: int
    blend: list[float]
    created: float
    good: bool
    instant: bool
    requests: int
    reward: float | None


class VersionsResponse(Given):
    """Versions, newest first."""

    versions: list[MergeVersion]


class TreeNode(Given):
    """A node of the router's search tree."""

    parent: int
    depth: int
    blend: list[float]
    visits: float
    value: float | None
    """Predicted reward for the present task mix."""
    leaf: bool


class TreeResponse(Given):
    """The search tree, parents before children; empty for a router without one."""

    nodes: list[TreeNode]
    total: int
    """How many there are; the ones shown are the most visited."""


class LatencyWindow(Given):
    """Ten seconds of answers."""

    time: float
    requests: int
    texts: int
    """Texts or prompts that were answered; a request holds one or more."""
    p50_ms: float | None
    p99_ms: float | None


class LatencyResponse(Given):
    """Windows, oldest first; the last is still open."""

    windows: list[LatencyWindow]
