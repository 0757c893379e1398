"""Locked, or newest, inputs -> files and new locks.

Enters: locks and lock requests. Leaves: files whose hashes were checked, and newer locks.
"""
