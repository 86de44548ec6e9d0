"""What Claude Code, Codex and other hosts need: configuration, hooks, waking."""
