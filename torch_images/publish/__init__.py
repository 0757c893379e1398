"""Proof -> names, a registry, pods.

Enters: a report that passed. Leaves: tags, pushed images, datasheets, the site and pod
templates.
"""
