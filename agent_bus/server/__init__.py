"""The MCP server: tools, resources and the stdio transport."""
