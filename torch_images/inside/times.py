"""The time of every file in an image."""

# 1980-01-01 (UTC), in seconds since 1970: the first in zip archives, and so in wheels.
EPOCH = 315532800
