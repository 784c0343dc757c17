"""Run the mutation tester over the mathematics, then print the share of mutants killed and the survivors.

What to change and which tests to run says `[tool.mutmut]` in pyproject.toml. Results are kept in `mutants/`:
a run that is stopped goes on where it was, mutants once killed stay so, survivors are tried again.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

RESULTS = Path("mutants")
# What mutmut reports of a mutant: how its tests ended, or what ended them.
KILLED = {
    1: "killed",
    3: "killed",
    36: "timeout",
    24: "timeout",
    -24: "timeout",
    152: "timeout",
    255: "timeout",
}
SURVIVED = {0: "survived", 5: "no tests", 33: "no tests"}


def main() -> None:
    """Test the mutants (unless only a report is wanted) and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only print what was found so far")
    parser.add_argument("--show", action="store_true", help="print the change that each survivor makes")
    parser.add_argument("--processes", type=int, default=1, help="mutants that are tested at once")
    options = parser.parse_args()
    if not options.report:
        for path in sorted(RESULTS.rglob("*.py.meta")):
            forget_survivors(path)
        subprocess.run([mutmut(), "run", "--max-children", str(options.processes)], check=True)
    report(options.show)


def mutmut() -> str:
    """The program, beside the interpreter that runs this."""
    return str(Path(sys.executable).with_name("mutmut"))


def forget_survivors(path: Path) -> None:
    """Let the next run try the survivors of one module again."""
    content = json.loads(path.read_text())
    found = content["exit_code_by_key"]
    content["exit_code_by_key"] = {name: None if code in SURVIVED else code for name, code in found.items()}
    path.write_text(json.dumps(content, indent=4))


def report(show: bool) -> None:
    """A line for each module, the share of all, and every mutant that was not killed."""
    total: Counter[str] = Counter()
    left: dict[str, str] = {}
    print(f"{'module':50} {'mutants':>8} {'killed':>8} {'left':>6}")
    for path in sorted(RESULTS.rglob("*.py.meta")):
        codes: Mapping[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
        if not codes:
            continue
        states = {name: state_of(code) for name, code in codes.items()}
        killed = sum(state in KILLED.values() for state in states.values())
        left |= {name: state for name, state in states.items() if state not in KILLED.values()}
        total.update(mutants=len(states), killed=killed)
        module = str(path.relative_to(RESULTS)).removesuffix(".meta")
        print(f"{module:50} {len(states):8} {killed:8} {len(states) - killed:6}")
    share = 100 * total["killed"] / max(1, total["mutants"])
    print(f"{'all':50} {total['mutants']:8} {total['killed']:8} {total.total() - 2 * total['killed']:6}")
    print(f"{share:.1f} % killed\n")
    for name, state in left.items():
        print(f"{state:10} {name}")
        if show:
            subprocess.run([mutmut(), "show", name], check=True)


def state_of(code: int | None) -> str:
    """What became of a mutant, in words."""
    return "not tested" if code is None else (KILLED | SURVIVED).get(code, f"broken ({code})")


if __name__ == "__main__":
    main()
