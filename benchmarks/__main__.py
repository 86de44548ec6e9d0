"""`scripts/bench`: measure, show, compare."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import commands, missions, reading, report, sending, serving, waking
from benchmarks.measuring import Result, Scale

_AGAIN = 2
_GROUPS = {
    "sending": sending.figures,
    "serving": serving.figures,
    "waking": waking.figures,
    "reading": reading.figures,
    "commands": commands.figures,
    "openhands": missions.figures,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"all, or {', '.join(_GROUPS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: less than half")
    parser.add_argument("--check", action="store_true", help="fail where a ratio got worse")
    parser.add_argument("--chart", action="store_true", help=f"draw {report.CHART.name}")
    parser.add_argument("--save", action="store_true", help="make these ratios the committed ones")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where to measure; it should lie on the disk that holds your buses",
    )
    return parser.parse_args()


def main() -> int:
    """Measure what was asked for."""
    asked = _arguments()
    scale = Scale(asked.folder, asked.quick)
    wrong = [name for name in asked.groups if name not in _GROUPS]
    if wrong:
        sys.stderr.write(f"no group {wrong[0]}: there are {', '.join(_GROUPS)}\n")
        return 64
    measured = {name: _measure(name, scale) for name in asked.groups or _GROUPS}
    results = [result for group in measured.values() for result in group]
    sys.stdout.write(f"{report.machine(scale)}\n\n{report.table(results)}\n\n")
    sys.stdout.writelines(f"{report.line(result)}\n" for result in results)
    if asked.chart:
        report.draw(results)
    if asked.save:
        report.save(results)
    if not asked.check:
        return 0
    worse = [text for group in measured.items() for text in _worse(*group, scale)]
    sys.stderr.writelines(f"worse: {text}\n" for text in worse)
    return 1 if worse else 0


def _measure(group: str, scale: Scale) -> list[Result]:
    sys.stderr.write(f"{group} ...\n")
    return list(_GROUPS[group](scale))


def _worse(group: str, results: list[Result], scale: Scale) -> list[str]:
    """What got worse. Measured again where something did: only noise goes away."""
    worse = report.regressions(results)
    for _ in range(_AGAIN):
        if not worse:
            break
        again = report.regressions(_measure(group, scale))
        worse = {figure: text for figure, text in again.items() if figure in worse}
    return list(worse.values())


if __name__ == "__main__":
    sys.exit(main())
