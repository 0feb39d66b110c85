"""Options of a trial, from DTC_TRIAL=a=1,b=2."""
import os

OPTIONS = dict(x.split("=") for x in os.environ.get("DTC_TRIAL", "").split(",") if x)


def opt(name: str, default: str = "") -> str:
    return OPTIONS.get(name, default)


def num(name: str, default: float = 0.0) -> float:
    return float(OPTIONS.get(name, default))
