"""The real server does what the gateway expects of every provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import PUBLIC
from model import Model
from player import Addressed, RealPlayer
from provider_conformance import ProviderConformance, Stage
from server import Server


class TestTheRealServer(ProviderConformance):
    @pytest.fixture
    def stage(self, server: Server, model: Model, tmp_path: Path) -> Iterator[Stage]:
        with Addressed(server, model, PUBLIC) as provider:
            player = RealPlayer(server, model, provider)
            yield Stage(provider, player, model.agent(), tmp_path)
            player.fillers.clear()
            for ident in provider.made:
                server.call("DELETE", f"/api/conversations/{ident}")
