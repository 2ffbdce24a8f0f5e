"""Run mindspore.nn.thor on recorded cases (protocol: _adapter.py).

A case of "mindspore-gpu" is a real network: the release converts it, runs it forward and backward,
and its class ThorGpu takes the step. A case of "mindspore-ascend" is the class ThorAscend alone,
which is given factors and gradients. Both run eagerly on a CPU, where `PATCHED` stands in for what
is missing.

Beside "hyper", whose "lr" and "damping" may be lists of one value a step, a case has
    "layers"  kind, name, params (indices); of a conv2d stride and padding; of another the cell
    "data"    seed; for a network the shape of a batch, its vocabulary if it is of ids, and the
              number of classes; else the rows that the factors are made of
and a run has "inputs": the gradients, and the statistics of each refresh.
"""

import sys

import mindspore
import numpy as np
from _adapter import from_bits, number, serve, to_bits
from mindspore import Tensor, context, nn, ops
from mindspore.nn.layer import thor_layer
from mindspore.ops import operations as primitives
from mindspore.train.train_thor import convert_utils

FACTORED = ("dense", "conv2d", "embedding", "embedding_lookup")
PARTS = {"dense": "weight bias", "conv2d": "weight bias", "batch_norm": "gamma beta"}
PARTS.update({"embedding": "embedding_table", "embedding_lookup": "embedding_table"})
PARTS["norm"] = PARTS["batch_norm"]
OLD = mindspore.__version__.startswith("2.0")
THOR = sys.modules["mindspore.nn.optim.thor"]  # nn.optim.thor is the function
PATCHED = [
    "gpu: CholeskyTrsm, UpdateThorGradient and ThorIm2Col exist on GPUs alone: stand-ins in NumPy, "
    "a reading of their CUDA sources that computes in float64 and rounds once to float32. The "
    "inverse Cholesky factors, the product of the inverses with the gradient and the patches are "
    "therefore not vouched for; the products of Cholesky factors, the statistics, damping, scales, "
    "order, embedding, LayerNorm, decay, clipping, schedules and moments are the release's",
    "gpu: the network is converted as for a GPU (else dense layers would be float16)",
    "gpu: ApplyMomentum on a CPU ignores use_nesterov: with it the parameters are computed by the "
    "formula of the CUDA kernel in float32, and not vouched for; the moments are the release's",
    "gpu: an identity after each layer's own hook reads the gradient of its output",
    "ascend: CusCholeskyTrsm, CusBatchMatMul, CusMatrixCombine and CusFusedAbsMax1 exist on Ascend "
    "alone: stand-ins in NumPy, a reading of their TIK sources (float64, rounded once to float32); "
    "factors and gradients are made up, so the layers' side and the order of an im2col's columns "
    "are not vouched for; half-precision products are those of a CPU",
    "the flag thor is set as ModelThor does: on at every step that refreshes, else off",
]
if OLD:
    PATCHED.append(
        "gpu: an eager convolution cannot store its normalizers, which are int: they are wrapped "
        "in a tensor, and its hook, the release's own, is called from Python instead of compiled"
    )


# -------------------------------------------------------------------------------- the stand-ins


def blocks(matrix, size):
    """The diagonal blocks of a matrix, the last filled up with the identity."""
    count = -(-len(matrix) // size)
    padded = np.eye(count * size)
    padded[: len(matrix), : len(matrix)] = matrix
    return padded.reshape(count, size, count, size)[range(count), :, range(count)]


def single(values):
    return Tensor(np.ascontiguousarray(values, np.float32))


def inverse_cholesky(matrix, size):
    return np.linalg.inv(np.linalg.cholesky(blocks(matrix.asnumpy().astype(np.float64), size)))


class CholeskyTrsm:
    """L^-1 of each diagonal block, without a split of the whole."""

    def __init__(self, split_dim=0):
        self.split_dim = split_dim

    def __call__(self, matrix):
        lower = inverse_cholesky(matrix, min(self.split_dim or len(matrix), len(matrix)))
        return single(lower if self.split_dim else lower[0])


class UpdateThorGradient:
    """G^-1 g A^-1, tile by tile."""

    def __init__(self, split_dim):
        pass

    def __call__(self, g_inverse, gradient, a_inverse):
        g, a, x = (y.asnumpy().astype(np.float64) for y in (g_inverse, a_inverse, gradient))
        rows, columns = a.shape[:2]
        size, width = g.shape[1], a.shape[2]
        tiles = np.zeros((rows * size, columns * width))
        tiles[: x.shape[0], : x.shape[1]] = x
        tiles = tiles.reshape(rows, size, columns, width).transpose(0, 2, 1, 3)
        tiles = (g[:, None] @ tiles @ a).transpose(0, 2, 1, 3)
        return single(tiles.reshape(rows * size, columns * width)[: x.shape[0], : x.shape[1]])


class ThorIm2Col:
    """Patches (C, kh, kw, N, H', W') of an image padded as "same"."""

    def __init__(self, kernel_size, stride, pad_mode):
        assert pad_mode == "same"
        self.kernel, self.stride = kernel_size, stride

    def __call__(self, image):
        x = image.asnumpy()
        sizes = [-(-n // s) for n, s in zip(x.shape[2:], self.stride)]
        pads = [(0, 0), (0, 0)]
        for n, k, s, m in zip(x.shape[2:], self.kernel, self.stride, sizes):
            needed = max(0, (m - 1) * s + k - n)
            pads.append((needed // 2, needed - needed // 2))
        x = np.pad(x, pads).transpose(1, 0, 2, 3)
        (h, w), (s, r) = sizes, self.stride
        slices = [
            [x[:, :, i : i + s * (h - 1) + 1 : s, j : j + r * (w - 1) + 1 : r] for j in columns]
            for i, columns in ((i, range(self.kernel[1])) for i in range(self.kernel[0]))
        ]
        return single(np.array(slices).transpose(2, 0, 1, 3, 4, 5))


class CusCholeskyTrsm:
    """U^-1 of each diagonal block of 128, A = U^T U; of 64 for one of 64."""

    def __call__(self, matrix):
        return single(inverse_cholesky(matrix, min(128, len(matrix))).transpose(0, 2, 1))


class CusBatchMatMul:
    def __call__(self, x, y):
        x, y = (z.asnumpy().astype(np.float64) for z in (x, y))
        return single(x @ y.transpose(0, 2, 1))


class CusMatrixCombine:
    """The matrix of the diagonal blocks."""

    def __call__(self, parts):
        count, size, _ = parts.shape
        whole = np.zeros((count, size, count, size))
        whole[range(count), :, range(count)] = parts.asnumpy()
        return single(whole.reshape(count * size, count * size))


class CusFusedAbsMax1:
    """The largest magnitude, the padding's ones among them."""

    def __init__(self, origin_shape=(-1, -1)):
        pass

    def __call__(self, parts):
        return single([np.abs(parts.asnumpy()).max()])


class Unused:
    """A primitive for shapes that no case has."""


class AsIfGpu:
    """A context whose device is a GPU."""

    @staticmethod
    def get_context(name):
        return "GPU" if name == "device_target" else context.get_context(name)


def clip_and_show(enable, gradients):
    """The release's own clipping; what it gives is kept for `observe`."""
    SHOWN["gradient"] = CLIP(enable, gradients)
    return SHOWN["gradient"]


def as_tensor(cell, name, value):
    wrap = isinstance(value, int) and name in ("a_normalizer", "g_normalizer")
    nn.Cell.__setattr__(cell, name, single([value]) if wrap else value)


SHOWN = {}
CLIP, THOR.clip_gradient = THOR.clip_gradient, clip_and_show
primitives.CholeskyTrsm, primitives.UpdateThorGradient = CholeskyTrsm, UpdateThorGradient
primitives.CusCholeskyTrsm, primitives.CusBatchMatMul = CusCholeskyTrsm, CusBatchMatMul
primitives.CusMatrixCombine, primitives.CusFusedAbsMax1 = CusMatrixCombine, CusFusedAbsMax1
primitives.CusMatMulCubeFraczLeftCast = primitives.CusMatMulCubeDenseLeft = Unused
primitives.CusMatMulCubeDenseRight = primitives.CusMatMulCubeFraczRightMul = Unused
thor_layer.ThorIm2Col = ThorIm2Col
convert_utils.context = AsIfGpu
if OLD:
    thor_layer.Conv2dThor.__setattr__ = as_tensor


# ------------------------------------------------------------------------------------ the network


def cell_of(layer):
    return layer.get("cell", layer["kind"])


def build(layer, params):
    shape = params[layer["params"][0]].shape
    cell = cell_of(layer)
    biased = len(layer["params"]) == 2
    if cell == "dense":
        return nn.Dense(shape[1], shape[0], has_bias=biased)
    if cell == "conv2d":
        return nn.Conv2d(
            shape[1],
            shape[0],
            shape[2:],
            stride=tuple(layer["stride"]),
            pad_mode=layer["padding"],
            has_bias=biased,
        )
    if cell == "embedding":
        return nn.Embedding(*shape)
    if cell == "embedding_lookup":
        return nn.EmbeddingLookup(*shape, target=layer["target"], sparse=False)
    return nn.LayerNorm(shape) if cell == "norm" else nn.BatchNorm2d(shape[0])


class Network(nn.Cell):
    """The layers one after another, tanh before each dense and conv2d that is not the first."""

    def __init__(self, layers, params):
        super(Network, self).__init__()
        self.layers = layers
        self.seen = {}
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        for layer in layers:
            setattr(self, layer["name"], build(layer, params))

    def construct(self, x, labels):
        for layer in self.layers:
            if cell_of(layer) in ("dense", "conv2d") and layer is not self.layers[0]:
                x = ops.tanh(x)
            if cell_of(layer) == "dense" and len(x.shape) == 3:
                x = x.mean(1)
            elif cell_of(layer) == "dense":
                x = x.reshape((x.shape[0], -1))
            self.seen[layer["name"]] = {"a": x.asnumpy()}
            x = getattr(self, layer["name"])(x)
        return self.loss(x, labels)

    def watch(self):
        """After conversion: keep the gradient of the output of each layer with factors."""
        for layer in self.layers:
            if layer["kind"] in FACTORED:
                self.watch_one(getattr(self, layer["name"]), layer["name"])

    def watch_one(self, cell, name):
        own, python = cell.getG, OLD and isinstance(cell, thor_layer.Conv2dThor)

        def keep(grads):
            self.seen[name]["ds"] = grads[0].asnumpy()
            if python:
                cell.save_gradient(grads[0])
            return grads[0]

        hook = ops.HookBackward(keep)
        cell.getG = hook if python else lambda x: hook(own(x))


# ---------------------------------------------------------------------------------- the optimizer


def single_or_each(value):
    """A learning rate as the release takes it: rank 0, or a value a step."""
    return Tensor(np.float32([number(x) for x in value] if isinstance(value, list) else value))


class Gpu:
    """nn.thor on a network of the case, trained on batches drawn from the case's seed."""

    def __init__(self, case, params, arguments):
        self.case, self.random = case, np.random.RandomState(case["data"]["seed"])
        self.scale = arguments["loss_scale"]
        self.net = Network(case["layers"], params)
        self.optimizer = nn.thor(
            self.net, use_nesterov=bool(case["options"].get("use_nesterov")), **arguments
        )
        self.net.watch()
        self.params = check(self.optimizer.params, case)
        for param, value in zip(self.params, params):
            param.set_data(Tensor(value))

    def prepare(self, refresh):
        """The gradients of the next batch, and the statistics of its refresh."""
        data = self.case["data"]
        if "vocabulary" in data:
            x = self.random.randint(0, data["vocabulary"], data["shape"]).astype(np.int32)
        else:
            x = self.random.randint(-64, 65, data["shape"]) / 64.0
            spread = 0.5 + np.arange(x.shape[1]) % 3
            x = (x * spread.reshape([-1] + [1] * (x.ndim - 2)) + 0.25).astype(np.float32)
        labels = self.random.randint(0, data["classes"], data["shape"][0]).astype(np.int32)
        self.net.add_flags_recursive(thor=refresh)
        self.optimizer.add_flags_recursive(thor=refresh)
        gradient = ops.GradOperation(get_by_list=True, sens_param=True)
        sens = Tensor(np.float32(self.scale))
        self.grads = gradient(self.net, self.params)(Tensor(x), Tensor(labels), sens)
        return [g.asnumpy() for g in self.grads], {
            layer["name"]: self.net.seen[layer["name"]]
            for layer in self.case["layers"]
            if refresh and layer["kind"] in FACTORED
        }

    def step(self, t):
        before = [p.asnumpy().copy() for p in self.params]
        self.optimizer(self.grads)
        if self.optimizer.use_nesterov:
            rate, mu = np.float32(self.rate(t)), self.optimizer.momentum.asnumpy()
            for p, w, m, g in zip(self.params, before, self.optimizer.moments, SHOWN["gradient"]):
                p.set_data(Tensor(w - (g.asnumpy() * rate + m.asnumpy() * mu * rate)))

    def rate(self, t):
        rates = self.case["hyper"]["lr"]
        return number(rates[t - 1] if isinstance(rates, list) else rates)

    def factors(self):
        own = self.optimizer
        columns = (own.matrix_a_cov, own.matrix_g_cov, own.matrix_a, own.matrix_g)
        return dict(zip(("A", "G", "a_inverse", "g_inverse"), columns))


class Ascend(Gpu):
    """ThorAscend on factors and gradients drawn from the case's seed."""

    def __init__(self, case, params, arguments):
        self.case, self.random = case, np.random.RandomState(case["data"]["seed"])
        self.scale, self.size = arguments["loss_scale"], arguments["batch_size"]
        self.net = Network(case["layers"], params)
        convert_utils.ConvertNetUtils().convert_to_thor_net(self.net)
        self.optimizer = THOR.ThorAscend(self.net, **arguments)
        self.optimizer.use_nesterov = False
        self.params = check(self.optimizer.params, case)
        for param, value in zip(self.params, params):
            param.set_data(Tensor(value))

    def draw(self, *shape):
        return (self.random.randint(-64, 65, shape) / 64.0).astype(np.float32)

    def second_moment(self, size, scale):
        x = self.draw(self.case["data"]["rows"], size).astype(np.float64) + 0.25
        return (x.T @ x * scale / len(x)).astype(np.float32)

    def prepare(self, refresh):
        grads = [self.draw(*p.shape) * np.float32(self.scale) for p in self.params]
        self.grads = tuple(Tensor(g) for g in grads)
        self.optimizer.add_flags_recursive(thor=refresh)
        given, own = {}, self.optimizer
        convolution = 0
        for layer in self.case["layers"] if refresh else ():
            if layer["kind"] not in FACTORED:
                continue
            k, shape = len(given), self.params[layer["params"][0]].shape
            columns = int(np.prod(shape[1:]))
            one = {"G": self.second_moment(shape[0], (self.scale / self.size) ** 2)}
            if layer["kind"] == "embedding":
                one["A"] = self.random.randint(0, 4, shape[0]).astype(np.float32)
                one["G"] = self.second_moment(shape[1], (self.scale / self.size) ** 2)
            else:
                one["A"] = self.second_moment(columns, 1.0)
            own.matrix_a_cov[k].set_data(Tensor(one["A"]))
            own.matrix_g_cov[k].set_data(Tensor(one["G"]))
            if layer["kind"] == "conv2d":
                one["a_norm"], one["g_norm"] = (
                    np.array([self.size * n], np.float32) for n in layer["positions"]
                )
                own.a_normalizer[convolution].set_data(Tensor(one["a_norm"]))
                own.g_normalizer[convolution].set_data(Tensor(one["g_norm"]))
                convolution += 1
            given[layer["name"]] = one
        return grads, given

    def factors(self):
        own = self.optimizer
        if not own.conv_layer_count:
            return {"a_inverse": own.matrix_a_cov, "g_inverse": own.matrix_g_cov}
        columns = (own.matrix_a, own.matrix_g, own.matrix_max_inv)
        return dict(zip(("a_inverse", "g_inverse", "scale"), columns))


def check(params, case):
    """The optimizer's parameters, if they are those of the case."""
    names, wanted = [p.name for p in params], [p["name"] for p in case["params"]]
    assert names == wanted, "the parameters are %s, not %s" % (names, wanted)
    return params


def run(kinds, profile, case):
    """One run of one case: inputs, dtypes, steps; an error ends it."""
    params = [from_bits(p["bits"], p["dtype"], p["shape"]) for p in case["params"]]
    hyper, steps = dict(case["hyper"]), case["steps"]
    frequency = int(hyper.pop("frequency"))
    lr, damping = hyper.pop("lr"), hyper.pop("damping")
    arguments = {name: number(value) for name, value in hyper.items()}
    arguments["batch_size"] = int(arguments["batch_size"])
    undecayed = {
        case["params"][i]["name"]
        for group in case.get("groups", [])
        if group["hyper"].get("weight_decay") == "0.0"
        for i in group["params"]
    }
    arguments.update(
        learning_rate=single_or_each(lr),
        damping=single_or_each(damping if isinstance(damping, list) else [damping] * steps),
        frequency=max(2, frequency),
        enable_clip_grad=bool(case["options"].get("enable_clip_grad")),
        decay_filter=lambda p: p.name not in undecayed,
    )
    inputs = {"grads": [], "statistics": {}}
    recorded = {}
    try:
        running = kinds[profile](case, params, arguments)
        for t in range(1, steps + 1):
            refresh = (t - 1) % frequency == 0
            grads, statistics = running.prepare(refresh)
            inputs["grads"].append([to_bits(g) for g in grads])
            if refresh:
                inputs["statistics"][str(t)] = {
                    name: {key: array(x) for key, x in one.items()}
                    for name, one in statistics.items()
                }
            running.step(t)
            recorded[str(t)] = observe(running, refresh)
    except (IndexError, RuntimeError, ValueError) as error:
        if "error" not in case["tags"]:
            raise
        text = str(error).split("\n")[0]
        return {"inputs": inputs, "error": {"type": type(error).__name__, "message": text}}
    return {"inputs": inputs, "dtypes": {"t": "int32"}, "steps": recorded}


def observe(running, refresh):
    seen = {
        "param": [to_bits(p.asnumpy()) for p in running.params],
        "m": [to_bits(m.asnumpy()) for m in running.optimizer.moments],
        "gradient": [to_bits(g.asnumpy()) for g in SHOWN["gradient"]],
        "t": [to_bits(running.optimizer.cov_step.asnumpy().reshape(()))] * len(running.params),
    }
    if refresh:
        for name, values in running.factors().items():
            seen[name] = [array(x.asnumpy()) for x in values]
    return seen


def array(values):
    return {"dtype": str(values.dtype), "shape": list(values.shape), "bits": to_bits(values)}


if __name__ == "__main__":
    context.set_context(mode=context.PYNATIVE_MODE, device_target="CPU")
    kinds = {"mindspore-gpu": Gpu, "mindspore-ascend": Ascend}
    serve("mindspore", mindspore.__version__, {}, list(kinds), kinds, PATCHED, run)
