"""`openhands …`: missions for children on an OpenHands agent server, and the gateway to it."""

from __future__ import annotations

from agent_bus.cli.app import TextCommand, group
from agent_bus.cli.openhands import children, host, missions, tokens

openhands = group(help="Hand missions to OpenHands children, and look after them.")

for _name, _verb in {
    "create": missions.create,
    "children": children.children,
    "show": children.show,
    "cancel": missions.cancel,
    "resume": missions.resume,
    "serve": host.serve,
    "reconcile": host.reconcile,
    "mirror": host.mirror,
    "mint": tokens.mint,
    "revoke": tokens.revoke,
    "doctor": host.doctor,
}.items():
    openhands.command(_name, cls=TextCommand)(_verb)
openhands.add_typer(tokens.keys, name="keys")
