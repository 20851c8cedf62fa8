"""Proleptic Gregorian calendar arithmetic on day numbers; no clock and no zone is ever read.

Invariant: day 0 is 1970-01-01; years may be negative or beyond 9999.
"""

from __future__ import annotations

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_in_month(year: int, month: int) -> int:
    """28 to 31; `month` is 1 to 12."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and leap else _MONTH_DAYS[month - 1]


def days_of(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to the given date."""
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def date_of(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a day number."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = (shifted_month + 2) % 12 + 1
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    return year_of_era + era * 400 + (month <= 2), month, day


def date_text(days: int) -> str:
    """`yyyy-mm-dd`."""
    year, month, day = date_of(days)
    sign = "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"
