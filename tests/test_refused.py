"""What must be refused: by refopt's objects, and by programs that say they do."""

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle import golden, inputs, refused, rop, spec, suite
from refopt.oracle.report import OK, VIOLATED, paragraph
from refopt.oracle.suite import REJECTED, SKIPPED, Item, Task
from refopt.oracle.verdict import CONFORMS, VIOLATION

VECTORS = {
    r.case.id: r
    for optimizer in inputs.FAULTS
    for r in golden.recordings(optimizer, golden.root() / "vectors")
    if refused.must(r.case)
}


def judged(recording):
    (result,) = suite.work(Task(recording.case, (Item("NumPy", "refopt", "documented"),)))
    return result


def broken(recording, **changes):
    """The vector with something else in it."""
    return recording._replace(case=recording.case._replace(source=recording.case.source | changes))


@pytest.mark.parametrize("id_", VECTORS)
def test_the_documented_object_refuses_what_it_must(id_):
    result = judged(VECTORS[id_])
    assert (result.status, result.item.detail) == (CONFORMS, "")


def test_an_object_that_accepts_refuses_otherwise_or_refuses_what_is_right_is_a_violation():
    recording = VECTORS["nadam.vector.reject-lr-negative.f32"]
    source = recording.case.source
    for said, changes in {
        "accepts what must be refused": {"hyper": source["repair"]["hyper"]},
        "when it is made, which is no shape-mismatch": {"kind": "shape-mismatch"},
        "refuses what is right": {"repair": {"hyper": source["hyper"] | {"lr": "-2"}}},
    }.items():
        result = judged(broken(recording, **changes))
        assert result.status == VIOLATION
        assert said in result.item.detail
        assert said in " ".join(paragraph(result))


def test_each_fault_is_alone_and_repaired_by_what_the_vector_says():
    for id_, recording in VECTORS.items():
        source = recording.case.source
        (part,) = source["repair"]
        assert source[part] != source["repair"][part]
        assert source["kills"][0] == refused.ACCEPTS
        assert recording.runs == {}, id_


def test_alternatives_that_give_numbers_past_the_end_are_killed_by_the_refusal_of_it():
    source = VECTORS["thor.vector.reject-past-the-end.f32"].case.source
    assert source["kills"] == [refused.ACCEPTS, "past_end=zero", "past_end=last"]
    assert source["clauses"] == ["THO-1.1", "THO-2.3"]


# -- programs -------------------------------------------------------------------------------------


class Talks:
    """A program that runs the documented object of refopt, spoken to in ROP/1."""

    def __init__(self, optimizer, *, kind=None, refuses=False, checks=True):
        takes = {*rop.words(optimizer)}
        self.spoken = rop.Spoken("mine", "1", takes)
        self.kind, self.refuses, self.checks, self.case = kind, refuses, checks, None

    def answer(self, question):
        seq = question["seq"]
        if question["op"] == "case":
            self.case, self.grads, self.seen = question, [], {}
            return {"seq": seq}
        self.grads.append(question["grads"])
        self.seen[str(question["t"])] = question.get("statistics", {})
        case = self.case
        params = [
            {"dtype": case["dtype"], "shape": shape, "bits": bits}
            for shape, bits in zip(case["shapes"], case["params"], strict=True)
        ]
        source = case | {"params": params, "steps": len(self.grads), "grads": self.grads}
        source |= {"statistics": self.seen}
        _, error = refused.raised(source) if self.checks else ("", None)
        if error or self.refuses:
            text = str(error)
            kind = "invalid-hyperparameter"
            kind = "shape-mismatch" if "shape" in text else kind
            kind = "missing-gradient" if "grads_and_vars" in text else kind
            kind = "missing-statistics" if "activations: " in text else kind
            return {"seq": seq, "rejected": {"kind": self.kind or kind, "message": text}}
        return {"seq": seq, "param": case["params"]}


def outcomes(optimizer, program):
    """The status of each vector that must be refused."""
    found = {}
    for recording, parts in rop.questions(rop.vectors(optimizer)):
        if refused.must(recording.case):
            (item,) = rop.items(program.spoken, recording, parts, program.answer, None)
            found[recording.case.id] = item
    return found


@pytest.mark.parametrize("optimizer", rop.OBJECTS)
def test_a_program_that_refuses_what_it_must_conforms(optimizer):
    found = outcomes(optimizer, Talks(optimizer))
    assert len(found) >= 7
    assert {item.status for item in found.values()} == {CONFORMS}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"checks": False}, "accepts what must be refused"),
        ({"kind": "non-finite"}, "which is no "),
        ({"refuses": True}, "refuses what is right"),
    ],
)
def test_a_program_that_checks_nothing_or_refuses_everything_is_a_violation(how, said):
    for optimizer in rop.OBJECTS:
        for item in outcomes(optimizer, Talks(optimizer, **how)).values():
            assert item.status == VIOLATION
            assert said in item.detail or "refuses with" in item.detail


def test_a_program_that_does_not_say_that_it_refuses_is_not_asked():
    program = Talks("nadam")
    program.spoken.takes.discard("rejects")
    found = outcomes("nadam", program)
    assert {(item.status, item.detail) for item in found.values()} == {
        (SKIPPED, "does not take rejects")
    }


FUNCTION = """
import numpy as np

def plain(param, grad, state, *, lr, betas, eps, weight_decay, momentum_decay):
    {check}
    return param, None

plain.rejects = True
"""
CHECK = """if param.shape != grad.shape:
        raise ValueError(f"a gradient like its parameter is required, got {grad.shape}")
    if not (lr >= 0 and eps >= 0 and weight_decay >= 0 and momentum_decay >= 0
            and max(betas) < 1 and min(betas) >= 0):
        raise ValueError("hyperparameters in their ranges are required")"""


@pytest.mark.parametrize(("check", "code"), [(CHECK, OK), ("pass", VIOLATED)])
def test_a_function_that_refuses_is_asked_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, code: int
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION.format(check=check))
    monkeypatch.chdir(tmp_path)
    select = ("--select", "*reject*", "--json")
    given = ["check", "py:mine:plain", "--optimizer", "nadam", *select]
    result = CliRunner().invoke(cli.app, given)
    assert result.exit_code == code, result.output
    runs = [json.loads(line) for line in result.stdout.splitlines()][1:-1]
    statuses = Counter(run["status"] for run in runs)
    assert statuses == {CONFORMS if code == OK else VIOLATION: len(inputs.FAULTS["nadam"])}
    assert REJECTED not in statuses


def test_faults_name_hyperparameters_of_the_documented_object():
    for optimizer, rows in inputs.FAULTS.items():
        known = spec.load(optimizer)["hyperparameters"]
        assert len({slug for slug, *_ in rows}) == len(rows)
        for _, comment, kind, hyper, _ in rows:
            assert comment.endswith(".")
            assert kind in refused.KINDS
            assert hyper.keys() <= known.keys()
