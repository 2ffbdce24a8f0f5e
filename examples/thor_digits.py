"""Train a classifier of handwritten digits with THOR, SGD with momentum, and RMSprop.

Forward and backward pass of `refopt.problems.Network` are written out, so that the input of each
layer and the gradient of its output, which THOR needs, are at hand. They are operations of the
array API alone: NumPy and CuPy take the same code.

    python examples/thor_digits.py --plot digits.png
    python examples/thor_digits.py --library cupy

Needs scikit-learn for the digits, and matplotlib for the plot.
"""

import argparse
import importlib
import time
from statistics import median

import numpy as np
from array_api_compat import array_namespace

import refopt
from refopt import layers
from refopt.problems import Network

SIZES = (64, 64, 32, 10)
BATCH, TEST, GOAL = 64, 500, 0.97
# The powers of two that reached the goal in the fewest epochs, as a mean over nine other seeds,
# but on the same test images: what is compared is the best that each can do on these.
RATES = {"THOR": 2.0**-12, "SGD with momentum": 2.0**-3, "RMSprop": 2.0**-6}
DAMPING, FREQUENCY, MOMENTUM = 2.0**-6, 10, 0.9


def digits(library):
    """(images, one-hot labels) to train on, and (images, labels) to test on."""
    images, one_hot, *test = Network(test=TEST).data(importlib.import_module(library), "float32")
    return (images, one_hot), test


def net_of(seed, like):
    """Dense layers, initialised as He et al. (2015) do for rectified units."""
    params = Network(sizes=SIZES, seed=seed).start(array_namespace(like), "float32")
    pairs = zip(params[::2], params[1::2], strict=True)
    return [layers.Dense(f"fc{i}", weight=w, bias=b) for i, (w, b) in enumerate(pairs, start=1)]


def values(net):
    return [p.data for layer in net for p in layer.parameters]


def stepper(method, net, rate):
    """A function of (gradients, inputs, output gradients) that takes a step."""
    parameters = [p for layer in net for p in layer.parameters]
    if method == "THOR":
        thor = refopt.thor(net, rate, DAMPING, MOMENTUM, batch_size=BATCH, frequency=FREQUENCY)

        def step(seen):
            names = [layer.name for layer in net]
            thor(
                seen.gradients,
                activations=dict(zip(names, seen.activations, strict=True)),
                output_gradients=dict(zip(names, seen.output_gradients, strict=True)),
            )

    elif method == "RMSprop":
        rmsprop = refopt.RMSprop(learning_rate=rate)

        def step(seen):
            rmsprop.apply_gradients(zip(seen.gradients, parameters, strict=True))

    else:
        moments = [0.0 for _ in parameters]

        def step(seen):
            for i, (p, g) in enumerate(zip(parameters, seen.gradients, strict=True)):
                moments[i] = MOMENTUM * moments[i] + g
                p.assign(p.data - rate * moments[i])

    return step


def train(method, seed, epochs, data, rate=None):
    """After each epoch: (seconds of training so far, accuracy on the test images)."""
    (images, one_hot), test = data
    xp, net = array_namespace(images), net_of(seed, images)
    step = stepper(method, net, RATES[method] if rate is None else rate)
    random, seconds, curve = np.random.default_rng(seed), 0.0, []
    for _ in range(epochs):
        begin = time.perf_counter()
        order = random.permutation(images.shape[0])
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = xp.asarray(order[start : start + BATCH])
            x, y = xp.take(images, rows, axis=0), xp.take(one_hot, rows, axis=0)
            inputs, logits = Network.forward(values(net), x)
            step(Network.backward(values(net), inputs, logits, y))
        float(net[0].weight.data[0, 0])  # waits for the device
        seconds += time.perf_counter() - begin
        curve.append((seconds, Network.accuracy(values(net), *test)))
    return curve


def reached(curve):
    """(epochs, seconds) to the goal; infinite where it was not reached."""
    for epoch, (seconds, share) in enumerate(curve, start=1):
        if share >= GOAL:
            return epoch, seconds
    return float("inf"), float("inf")


def plotted(curves, path):
    """Accuracy over epochs and over time: each seed thin, their median thick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="tight")
    for color, (method, runs) in zip(("C0", "C1", "C2"), curves.items(), strict=True):
        shares = [[share for _, share in run] for run in runs]
        seconds = [[second for second, _ in run] for run in runs]
        epochs = range(1, len(runs[0]) + 1)
        for x, y in zip(seconds, shares, strict=True):
            left.plot(epochs, y, color=color, linewidth=0.5, alpha=0.5)
            right.plot(x, y, color=color, linewidth=0.5, alpha=0.5)
        middle = [median(column) for column in zip(*shares, strict=True)]
        times = [median(column) for column in zip(*seconds, strict=True)]
        left.plot(epochs, middle, color=color, linewidth=2, label=method)
        right.plot(times, middle, color=color, linewidth=2, label=method)
    for axes, label in ((left, "epochs"), (right, "seconds of training")):
        axes.axhline(GOAL, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlabel(label)
        axes.set_ylim(0.85, 1)
    left.set_ylabel(f"accuracy on {TEST} test images")
    right.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", choices=("numpy", "cupy"), default="numpy")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--plot", metavar="FILE")
    given = parser.parse_args(arguments)
    data = digits(given.library)
    curves = {
        method: [train(method, seed, given.epochs, data) for seed in range(given.seeds)]
        for method in RATES
    }
    print(f"to {GOAL:.0%} of {TEST} test images, median of {given.seeds} seeds:")
    for method, runs in curves.items():
        epochs, seconds = (median(column) for column in zip(*map(reached, runs), strict=True))
        print(f"  {method:18} {epochs:4g} epochs  {seconds:6.2f} s")
    if given.plot:
        plotted(curves, given.plot)
    return curves


if __name__ == "__main__":
    main()
