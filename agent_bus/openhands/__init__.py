"""OpenHands: children on an agent server, and their ends as messages."""
