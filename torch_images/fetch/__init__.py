"""Locked, or newest, inputs -> files and new locks.

Enters: locks and lock requests. Leaves: files with checked hashes, and newer locks.
"""
