"""Run the installed torch.optim.NAdam on recorded cases (protocol: conformance/make.py).

Needs PyTorch and the standard library. Profiles are named after torch 2.13, the release they
describe; hello states the version that really ran.
"""

import contextlib
import importlib
import json
import platform
import re
import struct
import sys
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # which is not needed

import torch  # noqa: E402

nadam_module = importlib.import_module("torch.optim.nadam")

MODES = {
    "torch-2.13": {"foreach": False},
    "torch-2.13-foreach": {"foreach": True},
    "torch-2.13-differentiable": {"foreach": False, "differentiable": True},
    "torch-2.13-capturable": {"foreach": False, "capturable": True},
}
STATE = {"m": "exp_avg", "v": "exp_avg_sq", "product": "mu_product", "t": "step"}
DEVICES = "_get_capturable_supported_devices"  # torch's list of devices; CPU is not on it
PATCHED = (
    "torch-2.13-capturable: torch.optim.nadam.%s also allows 'cpu' "
    "(the arithmetic is torch's own capturable for-loop, on CPU tensors)" % DEVICES
)
WIDTH = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
UNSIGNED = {2: "H", 4: "I", 8: "Q"}
QUIET_NAN = {
    torch.float16: "7e00",
    torch.bfloat16: "7fc0",
    torch.float32: "7fc00000",
    torch.float64: "7ff8000000000000",
}


def real_dtype(dtype):
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def from_bits(bits, dtype, shape):
    """The contiguous tensor whose elements have these big-endian bit patterns."""
    real = real_dtype(dtype)
    width = WIDTH[real]
    raw = bytes.fromhex(bits)
    order = UNSIGNED[width]
    values = struct.unpack(">%d%s" % (len(raw) // width, order), raw)
    if not values:
        return torch.zeros(shape, dtype=dtype)
    native = bytearray(struct.pack("=%d%s" % (len(values), order), *values))
    return torch.frombuffer(native, dtype=real).clone().view(dtype).reshape(shape)


def to_bits(tensor):
    """The bit patterns of a tensor in logical order; every NaN as the quiet one."""
    tensor = tensor.detach().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    width = WIDTH[tensor.dtype]
    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    patterns = tensor.reshape(-1).view(signed).tolist()
    nans = torch.isnan(tensor).reshape(-1).tolist()
    mask = (1 << 8 * width) - 1
    return "".join(
        QUIET_NAN[tensor.dtype] if nan else "%0*x" % (2 * width, pattern & mask)
        for pattern, nan in zip(patterns, nans)
    )


def laid_out(values, layout):
    """A tensor with these values whose memory lies as `layout` says."""
    shape = list(values.shape)
    if layout == "F":
        place = torch.empty(shape[::-1], dtype=values.dtype).permute(*range(len(shape))[::-1])
    elif layout == "strided":  # every second element of a larger buffer
        place = torch.empty(shape[:-1] + [2 * shape[-1]], dtype=values.dtype)[..., ::2]
    else:
        return values
    return place.copy_(values)


def number(value):
    """A hyperparameter: a float, or a tensor where the case gives bits."""
    if isinstance(value, dict):
        return from_bits(value["bits"], getattr(torch, value["dtype"]), value.get("shape", []))
    return float(value)


def settings(hyper, defaults):
    """Our names to torch's; the two betas are one setting there."""
    names = {"lr": "lr", "epsilon": "eps"}
    kept = {k: number(v) for k, v in hyper.items() if k not in ("beta1", "beta2")}
    result = {names.get(k, k): v for k, v in kept.items()}
    if "beta1" in hyper or "beta2" in hyper:
        first, second = defaults
        result["betas"] = (
            number(hyper["beta1"]) if "beta1" in hyper else first,
            number(hyper["beta2"]) if "beta2" in hyper else second,
        )
    return result


@contextlib.contextmanager
def allowed_on_cpu(capturable):
    """Let the capturable path run on CPU tensors."""
    original = getattr(nadam_module, DEVICES) if capturable else None
    if original is not None:
        setattr(nadam_module, DEVICES, lambda *a, **k: list(original(*a, **k)) + ["cpu"])
    try:
        yield
    finally:
        if original is not None:
            setattr(nadam_module, DEVICES, original)


def beyond(case):
    """What of a case torch has no way to state."""
    found = {name for name in ("order", "finalize", "mesh") if name in case}
    if isinstance(case["hyper"]["lr"], dict) and "schedule" in case["hyper"]["lr"]:
        found.add("schedule")
    if any(isinstance(grad, dict) for row in case["grads"] for grad in row):
        found.add("sparse")
    return ", ".join(sorted(found))


def answer(case, modes, run):
    """The answer to a case: its run in each mode, or why there is none."""
    if beyond(case):
        return {"id": case["id"], "skipped": beyond(case)}
    chosen = [name for name in modes if name in case.get("profiles", modes)]
    return {"id": case["id"], "runs": {name: run(case, modes[name]) for name in chosen}}


def run(case, mode):
    """One run of one case: {"dtypes", "steps"}, or {"error"} if torch refused."""
    params = []
    for spec in case["params"]:
        values = from_bits(spec["bits"], getattr(torch, spec["dtype"]), spec["shape"])
        params.append(laid_out(values, spec.get("layout", "C")))
    if "differentiable" not in mode:
        params = [torch.nn.Parameter(p) for p in params]
    grads = [
        [
            None if bits is None else from_bits(bits, params[i].dtype, params[i].shape)
            for i, bits in enumerate(row)
        ]
        for row in case["grads"]
    ]
    wanted = case.get("record") or range(1, case["steps"] + 1)
    try:
        hyper = settings(case["hyper"], (None, None))
        groups = [
            dict(
                settings(group["hyper"], hyper["betas"]),
                params=[params[i] for i in group["params"]],
            )
            for group in case.get("groups", [{"params": range(len(params)), "hyper": {}}])
        ]
        options = {name: bool(value) for name, value in case["options"].items()}
        optimizer = torch.optim.NAdam(groups, **dict(hyper, **options), **mode)
        steps, dtypes = {}, {}
        for t in range(1, case["steps"] + 1):
            for group in optimizer.param_groups:
                group.update(settings(case.get("changes", {}).get(str(t), {}), group["betas"]))
            for param, grad in zip(params, grads[(t - 1) % len(grads)]):
                param.grad = None if grad is None else grad.clone()
            optimizer.step()
            if t in wanted:
                steps[str(t)] = observe(params, optimizer, dtypes)
    except Exception as error:
        return {"error": {"type": type(error).__name__, "message": str(error)}}
    return {"dtypes": dtypes, "steps": steps}


def allowed(case, mode):
    """As `run`; a capturable optimizer on the CPU too."""
    with allowed_on_cpu("capturable" in mode):
        return run(case, mode)


def observe(params, optimizer, dtypes):
    """All quantities after a step; `dtypes` gathers those that are not the parameter's."""
    seen = {"param": [to_bits(p) for p in params]}
    for name, key in STATE.items():
        seen[name] = []
        for param in params:
            value = optimizer.state.get(param, {}).get(key)
            seen[name].append(None if value is None else to_bits(value))
            if value is not None and (name in ("product", "t") or value.dtype != param.dtype):
                dtypes[name] = str(value.dtype).replace("torch.", "")
    return seen


def vendor():
    """The maker of the processor, by which MKL chooses its kernels; empty if unknown."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((n.split(":")[1].strip() for n in lines if n.startswith("vendor_id")), "")
    except OSError:
        return ""


def hello(profiles):
    config = torch.__config__.show()
    mkl = re.search(r"Math Kernel Library Version (\S+)", config)
    packages = {"mkl": mkl.group(1)} if mkl else {}
    return {
        "framework": "torch",
        "version": torch.__version__,
        "python": platform.python_version(),
        "platform": " ".join(
            ["%s-%s" % (platform.system(), platform.machine()), "".join(platform.libc_ver())]
        ).strip(),
        "cpu": " ".join([torch.backends.cpu.get_cpu_capability(), vendor()]).strip(),
        "packages": packages,
        "patched": [PATCHED] if "torch-2.13-capturable" in profiles else [],
        "profiles": profiles,
    }


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    profiles = [
        name for name in MODES if "capturable" not in name or hasattr(nadam_module, DEVICES)
    ]
    say({"hello": hello(profiles)})
    for line in sys.stdin:
        say(answer(json.loads(line), {name: MODES[name] for name in profiles}, allowed))


def say(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
