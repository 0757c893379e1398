"""What the Python of /opt/venv and the entrypoint share: an account, switches, the profile."""
