"""Recordings for FINDINGS.md: the only writer of `conformance/findings/`.

    python conformance/findings.py [NAME ...]

Each shows one finding that the suite's own recordings do not: what a release did is beside a
question that it was not recorded for. `asked` takes a recording as it is and states what somebody
asks for who knows the documentation alone; `recorded` runs a release again, in another way.
"""

import json
import sys
from typing import Any

import make

FINDINGS = make.HERE / "findings"
PSI = (
    "The release was called without a momentum decay: it takes none. Stated is that of Keras 2.10 "
    "and before, and of torch."
)
ASKED = {
    # name: (recording, cases, hyperparameters as the documentation of NAdam has them, why)
    "keras-2.15-momentum-decay": (
        "nadam/keras-2.15.json",
        "nadam.keras-2.15.epsilon-large.",
        {"momentum_decay": "0.004"},
        PSI,
    ),
    "keras-3-momentum-decay": (
        "nadam/keras-3.json",
        "nadam.keras-3.epsilon-large.",
        {"momentum_decay": "0.004"},
        PSI,
    ),
}
RECORDED = {
    # name: (adapter and arguments, environment, recording, cases, runs, what is done otherwise)
    "torch-load": (
        "torch_reload.py",
        "torch-2_13",
        "nadam/torch-2.13.json",
        "nadam.torch.half.",
        ["torch-2.13"],
        "After every step the optimizer loads its own state_dict.",
    ),
}


def document(golden: str, cases: str) -> dict[str, Any]:
    """A recording with some of its cases."""
    found: dict[str, Any] = json.loads((make.HERE / "golden" / golden).read_text(encoding="utf-8"))
    found["cases"] = [case for case in found["cases"] if case["id"].startswith(cases)]
    return found


def asked(name: str) -> dict[str, Any]:
    golden, cases, hyper, why = ASKED[name]
    found = document(golden, cases)
    found["provenance"] |= {"patched": [why], "command": f"python conformance/findings.py {name}"}
    for case in found["cases"]:
        case["hyper"] |= hyper
        case["comment"] = why
    return found


def recorded(name: str) -> dict[str, Any]:
    adapter, environment, golden, cases, runs, why = RECORDED[name]
    found = document(golden, cases)
    python, variables = make.environment(environment, None)
    given = [
        {k: v for k, v in case.items() if k != "runs"} | {"profiles": runs, "comment": why}
        for case in found["cases"]
    ]
    program, *arguments = adapter.split()
    command = [python, str(make.HERE / "adapters" / program), *arguments]
    hello, *answers = make.answers(command, variables, given)
    source = hello["hello"] | {"command": f"python conformance/findings.py {name}"}
    profiles = source.pop("profiles")
    source["patched"] = [why]
    found["cases"] = [
        {k: v for k, v in case.items() if k != "profiles"}
        | {"runs": make.fold(answer["runs"], profiles)}
        for case, answer in zip(given, answers, strict=True)
    ]
    return found | {"provenance": source}


def main(names: list[str]) -> None:
    for name in names or [*ASKED, *RECORDED]:
        found = asked(name) if name in ASKED else recorded(name)
        path = FINDINGS / f"{name}.json"
        make.write(path, make.canonical(found).encode())
        make.note(f"{path.name}: {len(found['cases'])} cases")


if __name__ == "__main__":
    main(sys.argv[1:])
