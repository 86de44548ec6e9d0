"""The gateway: hands missions to an OpenHands agent server and wakes the owner when they end."""
