"""Run the fuzzer: see run.py."""

from tests.fuzz.run import main

if __name__ == "__main__":
    main()
