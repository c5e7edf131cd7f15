"""What is known of a run while it goes on, for those who watch it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from kokuban_client.demo.layout import PlanItem, State

_NEWS_KEPT = 100


@dataclass(slots=True)
class AgentLine:
    """One agent, as the supervisor and the board know it."""

    name: str
    pid: int = 0
    doing: str = "starting"
    files: int = 0
    findings: int = 0
    alive: bool = True


@dataclass(slots=True)
class Progress:
    """A run's progress. Filled by the supervisor from what the board tells; read by a display."""

    run: str
    files: int
    agents: dict[str, AgentLine]
    stage: str = "starting the server"
    store: str = ""
    done: int = 0
    findings: int = 0
    conflicts: int = 0
    news: deque[tuple[int, float, str]] = field(default_factory=lambda: deque(maxlen=_NEWS_KEPT))
    """Number, seconds since the beginning, text."""
    told: int = 0
    _started_s: float = field(default_factory=time.monotonic)
    _states: dict[str, State] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """How long the run takes so far."""
        return time.monotonic() - self._started_s

    def tell(self, text: str) -> None:
        """Add a piece of news."""
        self.told += 1
        self.news.append((self.told, self.elapsed_s, text))

    def saw(self, label: str, item: PlanItem) -> None:
        """Take note of how far a file is."""
        before = self._states.get(label)
        self._states[label] = item.state
        agent = self.agents.get(item.agent)
        if item.state is State.DONE and before is not State.DONE:
            self.done += 1
            if agent is not None:
                agent.doing = "looking for work"
        elif item.state is State.CLAIMED and agent is not None:
            agent.doing = label
