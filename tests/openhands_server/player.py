"""Plays the runs of a real server, for the tests of what every provider does."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

from desk import until
from model import Model
from server import RUNS, Server

from agent_bus.openhands.gateway.agent_server import AgentServer
from agent_bus.openhands.gateway.provider import Order


class Addressed(AgentServer):
    """The provider, whose conversations each have an address of their own at the model."""

    def __init__(self, real: Server, model: Model, public_url: str) -> None:
        super().__init__(real.url, real.key, public_url)
        self._model = model
        self.made: set[UUID] = set()

    def create(self, order: Order) -> bool:
        self.made.add(order.child)
        return super().create(replace(order, agent=self._model.agent(order.child)))


class RealPlayer:
    """Says through the model how a run goes on; returns when the server shows it."""

    def __init__(self, real: Server, model: Model, provider: Addressed) -> None:
        self._real, self._model, self._provider = real, model, provider
        self.fillers = Fillers(real, model)

    def finish(self, ident: UUID, answer: str) -> None:
        self._model.play(ident, "finish", answer)

        def look() -> bool:
            if self._model.waits(ident):
                # Somebody has written meanwhile: then it goes on.
                self._model.play(ident, "finish", answer)
            return self._status(ident) == "finished"

        until(f"{ident} is finished", look)

    def fail(self, ident: UUID, code: str, text: str) -> None:
        status = {"LLMAuthenticationError": "401", "LLMServiceUnavailableError": "500"}[code]
        self._model.play(ident, status, text)
        self._becomes(ident, "error")

    def stick(self, ident: UUID) -> None:
        for _ in range(10):
            self._model.play(ident, "loop")
        self._becomes(ident, "stuck")

    def pause(self, ident: UUID) -> None:
        self._post(f"/api/conversations/{ident}/pause")
        # It shows when the step is done that the run is at.
        self._model.play(ident, "think", "almost")
        self._becomes(ident, "paused")

    def wait_for_confirmation(self, ident: UUID) -> None:
        # A policy is taken between two steps, and the run waits for its model in one.
        self._post(f"/api/conversations/{ident}/interrupt")
        self._becomes(ident, "paused")
        policy = {"policy": {"kind": "AlwaysConfirm"}}
        self._post(f"/api/conversations/{ident}/confirmation_policy", policy)
        self._model.forget(ident)
        self._post(f"/api/conversations/{ident}/run")
        self._model.play(ident, "tool", "true")
        self._becomes(ident, "waiting_for_confirmation")

    def use_tool(self, ident: UUID) -> None:
        self._model.play(ident, "tool", "true")
        until("a tool was used", lambda: self._provider.run_end(ident, None).used_tools)

    def vanish(self, ident: UUID) -> None:
        assert self._real.call("DELETE", f"/api/conversations/{ident}").status_code == 200

    def full(self, full: bool) -> None:
        if full:
            self.fillers.fill()
        else:
            self.fillers.clear()

    def _becomes(self, ident: UUID, status: str) -> None:
        until(f"{ident} is {status}", lambda: self._status(ident) == status)

    def _status(self, ident: UUID) -> str:
        found = self._provider.conversation(ident)
        return found.status if found else ""

    def _post(self, path: str, body: object = None) -> None:
        answer = self._real.call("POST", path, body)
        assert answer.status_code == 200, answer.text


class Fillers:
    """Conversations whose runs take up the places that the server has."""

    def __init__(self, real: Server, model: Model) -> None:
        self._real, self._model = real, model
        self._made: list[UUID] = []

    def fill(self) -> None:
        """Take all places that are free."""
        for _ in range(RUNS):
            if not self._begin():
                return

    def clear(self) -> None:
        """Give all of them back."""
        for ident in self._made:
            self._real.call("DELETE", f"/api/conversations/{ident}")
        self._made.clear()

    def _begin(self) -> bool:
        ident = uuid4()
        folder = self._real.folder / "fillers" / str(ident)
        folder.mkdir(parents=True)
        go = {"role": "user", "content": [{"type": "text", "text": "go"}]}
        body = {
            "conversation_id": str(ident),
            "workspace": {"kind": "LocalWorkspace", "working_dir": str(folder)},
            "autotitle": False,
            "initial_message": go,
            **self._model.agent(ident),
        }
        answer = self._real.call("POST", "/api/conversations", body)
        if answer.status_code == 429:
            return False
        assert answer.status_code == 201, answer.text
        self._made.append(ident)
        return True
