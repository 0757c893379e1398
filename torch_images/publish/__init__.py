"""Proof -> names, a registry, pods.

Enters: a report that passed. Leaves: tags, pushed images, datasheets, answers and pod templates.
"""
