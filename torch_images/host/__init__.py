"""This machine: its processes, engine, network and cache.

Enters: the environment. Leaves: what later stages call. Only `runner` starts processes; only
`engine` and `connection` speak to Docker.
"""
