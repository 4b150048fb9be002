"""`python -m skipqa`: the command, where its script is not on the path."""

from skipqa.cli.main import run

if __name__ == "__main__":
    run()
