"""Run the command line from a bare checkout: python cli.py run --profile h100 ..."""

from oasis_sim.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
