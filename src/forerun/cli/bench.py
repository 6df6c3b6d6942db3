"""`forerun bench`: measurements of speed and quality that also check equality."""

import typer

app = typer.Typer(help="Measure decoding speed, and quality against fp32.", no_args_is_help=True)
