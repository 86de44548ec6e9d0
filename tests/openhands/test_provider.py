"""The same tests over both providers: the one that is played and the one over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_server import FakeServer
from provider_conformance import ProviderConformance, Stage

from agent_bus.openhands.gateway.agent_server import AgentServer
from agent_bus.openhands.gateway.provider import Provider
from agent_bus.openhands.gateway.testing import PlayedServer

AGENT = {"agent": {"kind": "Agent", "llm": {"model": "stub"}}}


class TestPlayedServer(ProviderConformance):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        server = PlayedServer()
        provider: Provider = server
        return Stage(provider, server, AGENT, tmp_path)


class TestAgentServer(ProviderConformance):
    @pytest.fixture(params=[AGENT, None], ids=["named", "stored"])
    def stage(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
        with (
            FakeServer() as fake,
            AgentServer(fake.url, fake.key, "http://people.test") as server,
        ):
            provider: Provider = server
            yield Stage(provider, fake, request.param, tmp_path)


class TestAgentServerWithAcp(ProviderConformance):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[Stage]:
        with (
            FakeServer(acp=True) as fake,
            AgentServer(fake.url, fake.key, "http://people.test") as server,
        ):
            yield Stage(server, fake, AGENT, tmp_path)
