"""The command line: `main` is the entry point, one file holds one command, `console` what they print through."""
