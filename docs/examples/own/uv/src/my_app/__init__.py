"""A package that the image installs."""
