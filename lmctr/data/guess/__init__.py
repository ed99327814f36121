"""What the columns of a file probably are: of a log, a table or impressions, guessed from names and values, with the reason for every guess."""

from .found import Ask, Guess, LogGuess, NoLogError, NotToldError
from .impressions import guess_impressions
from .log import guess_log
from .sample import FileSample, sample_file
from .table import guess_files, guess_table

__all__ = [
    "Ask",
    "FileSample",
    "Guess",
    "LogGuess",
    "NoLogError",
    "NotToldError",
    "guess_files",
    "guess_impressions",
    "guess_log",
    "guess_table",
    "sample_file",
]
