"""What the adapters of NumPy-speaking frameworks share: bits, cases, the protocol of make.py.

An adapter gives `serve` a class with
    __init__(profile, hyper, options, params)   hyper: floats by canonical name; params: ndarrays
    change(hyper)                               new values, from the next step on
    step(grads)                                 one ndarray or None for each parameter
    observe()                                   canonical name -> list over parameters, or None
and raises `Inexpressible` where the framework has no way to state what a case asks. A set `can`
on the class names what else it takes; a case that asks for more is refused:
    "schedule"   hyper["lr"] may be a `Schedule`
    "sparse"     a gradient may be `Rows`
    "order"      step(grads, order=[1, 0]): the order of the pairs
    "finalize"   finalize() -> the parameters after the last step became their averages
    "mesh"       __init__(…, mesh={"x": 2}, sharding=[["x", None]]); absent arguments: no mesh
"""

import collections
import json
import platform
import sys

import numpy as np

Schedule = collections.namedtuple("Schedule", "name config")  # arguments: numbers, or lists of them
Rows = collections.namedtuple("Rows", "values indices")


class Inexpressible(Exception):
    """The framework cannot express a case; the text says why."""


def dtype_of(name):
    try:
        return np.dtype(name)
    except TypeError:
        raise Inexpressible("no dtype %s" % name) from None


def from_bits(bits, name, shape):
    """The array whose elements have these big-endian bit patterns."""
    dtype = dtype_of(name)
    width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    big = np.frombuffer(bytes.fromhex(bits), ">u%d" % width)
    return big.astype("=u%d" % width).view(dtype).reshape(shape)


def to_bits(array):
    """The bit patterns of an array in logical order; every NaN as the quiet one."""
    array = np.array(array, order="C")
    if array.dtype.kind == "c":
        array = array.reshape(-1).view("f%d" % (array.itemsize // 2))
    if array.dtype.kind != "i":
        array[np.isnan(array)] = abs(array.dtype.type(float("nan")))
    width = array.itemsize
    return array.reshape(-1).view("u%d" % width).astype(">u%d" % width).tobytes().hex()


def numbers(hyper):
    """Hyperparameters as floats, a learning rate possibly as a `Schedule`."""
    return {name: number(value) for name, value in hyper.items()}


def number(value):
    if not isinstance(value, dict):
        return float(value)
    if "schedule" not in value:
        raise Inexpressible("a hyperparameter that is a tensor")
    config = {
        name: [argument(x) for x in given] if isinstance(given, list) else argument(given)
        for name, given in value["config"].items()
    }
    return Schedule(value["schedule"], config)


def argument(text):
    """An argument of a schedule: an int where it is written as one."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


def gradient(given, param):
    """The gradient of one parameter as an ndarray, as `Rows`, or None."""
    if isinstance(given, dict):
        shape = [len(given["indices"])] + list(param.shape[1:])
        return Rows(from_bits(given["values"], param.dtype, shape), given["indices"])
    return None if given is None else from_bits(given, param.dtype, param.shape)


def asked(case, hyper):
    """What of `can` a case needs."""
    needs = {name for name in ("order", "finalize", "mesh") if name in case}
    if any(isinstance(value, Schedule) for value in hyper.values()):
        needs.add("schedule")
    if any(isinstance(given, dict) for row in case["grads"] for given in row):
        needs.add("sparse")
    return needs


def refuse(options, hyper, decay):
    """Refuse `maximize`, and weight decay of another kind than `decay`: none, l2 or decoupled."""
    if options.get("maximize"):
        raise Inexpressible("maximize")
    kind = "decoupled" if options.get("decoupled_weight_decay") else "l2"
    if hyper.get("weight_decay") and kind != decay:
        raise Inexpressible("weight decay of the kind %s" % kind)


def allow(hyper, options, names):
    """Refuse hyperparameters and options that are not among `names`."""
    others = sorted(set(hyper).union(options) - set(names.split()))
    if others:
        raise Inexpressible("there is no %s" % ", ".join(others))


def only(hyper, names):
    """Refuse to change any hyperparameter but `names`."""
    others = sorted(set(hyper) - set(names))
    if others:
        raise Inexpressible("%s cannot be changed between steps" % ", ".join(others))


def run(optimizer, profile, case):
    """One run of one case: {"dtypes", "steps"}, or {"error"} if the framework refused."""
    params = [from_bits(p["bits"], p["dtype"], p["shape"]) for p in case["params"]]
    rows = [[gradient(g, p) for g, p in zip(row, params)] for row in case["grads"]]
    if len(case.get("groups", [])) > 1:
        raise Inexpressible("parameter groups")
    hyper = numbers(dict(case["hyper"], **case.get("groups", [{"hyper": {}}])[0]["hyper"]))
    beyond = asked(case, hyper) - getattr(optimizer, "can", frozenset())
    if beyond:
        raise Inexpressible(", ".join(sorted(beyond)))
    wanted = case.get("record") or range(1, case["steps"] + 1)
    extra = {}
    if "mesh" in case:
        sharding = [p.get("sharding") or [None] * len(p["shape"]) for p in case["params"]]
        extra = {"mesh": case["mesh"], "sharding": sharding}
    steps, dtypes = {}, {}
    try:
        running = optimizer(profile, hyper, case["options"], params, **extra)
        for t in range(1, case["steps"] + 1):
            changes = case.get("changes", {}).get(str(t))
            if changes:
                running.change(numbers(changes))
            order = case.get("order", {}).get(str(t))
            running.step(rows[(t - 1) % len(rows)], **({"order": order} if order else {}))
            if t in wanted:
                steps[str(t)] = record(running.observe(), params, dtypes)
        if "finalize" in case:
            finalized = [to_bits(value) for value in running.finalize()]
            return {"dtypes": dtypes, "steps": steps, "finalized": finalized}
    except Inexpressible:
        raise
    except Exception as error:
        return {"error": {"type": type(error).__name__, "message": str(error)}}
    return {"dtypes": dtypes, "steps": steps}


def record(observed, params, dtypes):
    """All quantities after a step as bits; `dtypes` gathers those that are not the parameter's."""
    seen = {}
    for name, values in observed.items():
        values = [None if value is None else np.asarray(value) for value in values]
        seen[name] = [None if value is None else to_bits(value) for value in values]
        for value, param in zip(values, params):
            if value is not None and (name in ("product", "t", "lr") or value.dtype != param.dtype):
                dtypes[name] = str(value.dtype)
    return seen


def processor():
    """The widest vector instructions and the maker: what decides a library's kernels."""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read()
    except OSError:
        return platform.processor() or platform.machine()
    widest = next((n for n in ("avx512", "avx2", "avx") if n in text), platform.machine())
    makers = [line.split(":")[1] for line in text.splitlines() if line.startswith("vendor_id")]
    return "".join([widest.upper()] + makers[:1])


def serve(framework, version, packages, profiles, optimizer, patched=(), run=run):
    """Say hello, then answer each case from stdin by `run`."""
    system = "%s-%s %s" % (platform.system(), platform.machine(), "".join(platform.libc_ver()))
    hello = {
        "framework": framework,
        "version": version,
        "python": platform.python_version(),
        "platform": system.strip(),
        "cpu": processor(),
        "packages": dict({"numpy": np.__version__}, **packages),
        "patched": list(patched),
        "profiles": profiles,
    }
    say({"hello": hello})
    for line in sys.stdin:
        case = json.loads(line)
        runs, why = {}, "none of %s is known here" % ", ".join(case.get("profiles", profiles))
        for name in (name for name in profiles if name in case.get("profiles", profiles)):
            try:
                runs[name] = run(optimizer, name, case)
            except Inexpressible as reason:
                why = str(reason)
        say(dict({"runs": runs} if runs else {"skipped": why}, id=case["id"]))


def say(message):
    print(json.dumps(message), flush=True)
