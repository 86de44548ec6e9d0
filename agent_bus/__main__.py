"""`python -m agent_bus` is `agent-bus`."""

from agent_bus.cli import main

if __name__ == "__main__":
    main()
