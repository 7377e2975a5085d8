"""`python -m dejaq` is the command `dejaq`."""

from dejaq.cli.main import main

if __name__ == "__main__":
    main()
