"""The gateway over HTTP: the tools of children, and the places where ends are reported."""
