import subprocess


def test_trains() -> None:
    done = subprocess.run(["python", "main.py"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("loss ")
