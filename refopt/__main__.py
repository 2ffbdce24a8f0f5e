"""`python -m refopt`: the command `refopt`."""

from refopt.cli import main

if __name__ == "__main__":
    main()
