"""Locked images -> built, verified and tagged images.

Enters: images with their locks. Leaves: tags, SBOMs, and lines of the ledger.
"""
