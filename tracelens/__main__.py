"""`python -m tracelens`: the command line."""

from tracelens.cli import main

if __name__ == "__main__":
    main()
