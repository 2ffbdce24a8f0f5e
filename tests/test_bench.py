"""What the benchmark measures, and what it refuses."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from refopt import bench
from refopt.cli.base import app


def elements(shapes):
    return int(sum(np.prod(s) for s in shapes))


def test_the_lists_are_those_of_the_models():
    assert (len(bench.resnet50()), elements(bench.resnet50())) == (161, 25_557_032)
    assert (len(bench.bert_base()), elements(bench.bert_base())) == (199, 109_482_240)
    assert elements(bench.shapes_of("5e7")) == 50_000_000


def test_the_factors_are_those_of_the_layers_in_the_sizes_of_their_weights():
    found = bench.factors()
    assert len(found) == 2 * 54
    assert (found[:2], found[-2:]) == ([3 * 7 * 7, 64], [2048, 1000])
    assert (max(found), found.count(4608)) == (512 * 3 * 3, 3)


def test_parts_that_are_alike_are_timed_once_and_counted(monkeypatch):
    monkeypatch.setattr(bench, "factors", lambda: [3, 5, 3])
    for tensors in bench.FACTORS:
        (parts,) = bench.refreshes(tensors, ["refopt"]).values()
        assert [(k, step().shape) for k, step in parts] == [(2, (1, 3, 3)), (1, (1, 5, 5))]
    monkeypatch.setattr(bench, "_seconds", lambda step, repeats: step())
    parts = [(2, lambda: 10.0), (3, lambda: 1.0)]
    ((_, seconds, ratio),) = bench.compared({"one": parts}, "one", 2)
    assert (seconds[1], ratio[1]) == (23.0, 1.0)


def test_the_arithmetic_of_a_step_is_what_its_program_divides_and_takes_roots_of(monkeypatch):
    found = {}
    monkeypatch.setattr(bench.fused, "_kernel", lambda made, parallel: found.setdefault("k", made))
    for optimizer, ops in (("nadam", ["div", "sqrt", "div"]), ("rmsprop", ["sqrt", "div"])):
        found.clear()
        bench.arithmetic(optimizer, [(5,)])
        assert [x.op for x in found["k"].instructions] == ops


def test_ratios_are_taken_within_a_round():
    clock = iter(range(10**6))
    steps = {"one": lambda: next(clock), "other": lambda: next(clock)}
    found = {name: ratio for name, _, ratio in bench.compared(steps, "one", 5)}
    assert found["one"] == (1.0, 1.0, 1.0)
    assert found["other"][0] <= found["other"][1] <= found["other"][2]


def test_the_extra_memory_of_a_step_is_seen():
    assert bench.extra_memory(lambda: np.ones(10**6)) >= 8 * 10**6
    assert bench.extra_memory(lambda: None) < 10**4


@pytest.mark.parametrize("optimizer", ["nadam", "rmsprop"])
def test_bench_writes_its_figures_and_a_plot(tmp_path, monkeypatch, optimizer):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(bench, "limit_threads", lambda n: None)
    options = ["--optimizer", optimizer, "--tensors", "10", "--tensors", "20", "--rounds", "2"]
    files = ["--output", str(tmp_path / "all.json"), "--plot", str(tmp_path / "all.svg")]
    contestant = ["--contestant", "refopt tape"]
    done = CliRunner().invoke(app, ["bench", *options, *files, *contestant, "--json"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["threads"] == 1
    written = json.loads((tmp_path / "all.json").read_text())
    assert written["timings"] == lines[1:]
    assert [x["tensors"] for x in lines[1:]] == ["10", "20"]
    assert {x["contestant"] for x in lines[1:]} == {"refopt tape"}
    assert all(0 <= x["extra"] <= 1_000_000 for x in lines[1:])
    assert "<svg" in (tmp_path / "all.svg").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tensors", "many"], "--tensors of nadam must be one of a number of elements, resnet50"),
        (["--tensors", "0"], "must be one of a number of elements, resnet50"),
        (["--optimizer", "thor", "--tensors", "1e7"], "--tensors of thor must be one of resnet50,"),
        (["--contestant", "me"], "--contestant must be one of floor"),
        (["--optimizer", "sgd"], "--optimizer must be one of nadam, rmsprop, thor"),
        (["--tensorflow", "/nowhere/python"], "--tensorflow must be a Python interpreter"),
        (["--output", "/nowhere/all.json"], "--output must be a file that can be written"),
        (["--plot", "all.gif"], "--plot must be a .svg or a .png"),
    ],
)
def test_bench_names_what_it_does_not_know(options, said, monkeypatch):
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(bench, "limit_threads", lambda n: None)
    monkeypatch.setattr(bench, "measured", lambda *_: pytest.fail("nothing is measured"))
    done = CliRunner().invoke(app, ["bench", *options], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_bench_refuses_a_kernel_choice_that_changes_what_is_measured(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    done = CliRunner().invoke(app, ["bench"], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "OPENBLAS_CORETYPE must be unset" in done.output
