"""Wheels -> layers -> parent images.

Enters: fetched wheels and bases. Leaves: layers with equal bytes for equal wheels, and the parent
images that builds start from.
"""
