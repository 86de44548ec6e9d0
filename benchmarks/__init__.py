"""What agent-bus costs, each figure beside the least that its work can cost."""
