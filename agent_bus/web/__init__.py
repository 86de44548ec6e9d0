"""The bus on screen: pages on loopback, under one identity, for one person."""
