"""Train a classifier of handwritten digits; stop it whenever you like, and start it again.

    python examples/digits.py nadam

says how far it is after each epoch and saves everything that the next one depends on. Where it
finds what an earlier run saved, it goes on from there, bit for bit as if it had never stopped. It
ends with a plot. To train on a GPU, change the line that imports NumPy.

Needs scikit-learn for the digits, and matplotlib for the plot.
"""

import argparse
from pathlib import Path

import numpy as xp  # on a GPU: import cupy as xp

import refopt
from refopt import layers
from refopt.problems import Network

NETWORK = Network(sizes=(64, 64, 32, 10))


def nadam(net, parameters):
    optimizer = refopt.NAdam(parameters, lr=2**-7)

    def step(seen):
        for parameter, gradient in zip(parameters, seen.gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return optimizer, step


def rmsprop(net, parameters):
    optimizer = refopt.RMSprop(learning_rate=2**-8)
    optimizer.build(parameters)

    def step(seen):
        optimizer.apply_gradients(zip(seen.gradients, parameters, strict=True))

    return optimizer, step


def thor(net, parameters):
    optimizer = refopt.thor(net, 2**-12, 2**-6, 0.9, batch_size=NETWORK.batch, frequency=10)
    names = [layer.name for layer in net]

    def step(seen):
        optimizer(
            seen.gradients,
            activations=dict(zip(names, seen.activations, strict=True)),
            output_gradients=dict(zip(names, seen.output_gradients, strict=True)),
        )

    return optimizer, step


OPTIMIZERS = {"nadam": nadam, "rmsprop": rmsprop, "thor": thor}


def train(name, epochs, saved):
    """[mean cross-entropy of the training images, accuracy on the test images] of each epoch."""
    images, _, *test = NETWORK.data(xp, "float32")
    start = NETWORK.start(xp, "float32")
    pairs = zip(start[::2], start[1::2], strict=True)
    net = [layers.Dense(f"fc{i}", weight=w, bias=b) for i, (w, b) in enumerate(pairs, start=1)]
    parameters = [parameter for layer in net for parameter in layer.parameters]
    optimizer, step = OPTIMIZERS[name](net, parameters)
    curve = []
    if saved.exists():
        state = refopt.load(saved)
        optimizer.load_state_dict(state["optimizer"])
        for parameter, value in zip(parameters, state["parameters"], strict=True):
            parameter.assign(xp.asarray(value))
        curve = state["curve"]
        print(f"going on after epoch {len(curve)} of {saved}", flush=True)

    steps = images.shape[0] // NETWORK.batch
    for epoch in range(len(curve), epochs):
        for number in range(epoch * steps + 1, (epoch + 1) * steps + 1):
            step(NETWORK.at([parameter.data for parameter in parameters], number))
        values = [parameter.data for parameter in parameters]
        curve.append([float(NETWORK.at(values).value), NETWORK.accuracy(values, *test)])
        state = {"parameters": values, "optimizer": optimizer.state_dict(), "curve": curve}
        refopt.save(state, saved)  # whole, or the one before: a crash leaves no half
        loss, accuracy = curve[-1]
        print(f"epoch {epoch + 1:3}  loss {loss:.6f}  accuracy {accuracy:.1%}", flush=True)
    return curve


def plotted(curve, title, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="tight")
    figure.suptitle(title)
    labels = "loss on training images", "accuracy on test images"
    for axes, label, values in zip(
        figure.subplots(1, 2), labels, zip(*curve, strict=True), strict=True
    ):
        axes.plot(range(1, len(values) + 1), values)
        axes.set(xlabel="epoch", ylabel=label)
    figure.axes[0].set_yscale("log")
    figure.savefig(path, dpi=120)
    print(f"plotted in {path}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("optimizer", choices=OPTIMIZERS)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args(arguments)
    name = given.optimizer
    curve = train(name, given.epochs, given.folder / f"digits-{name}.safetensors")
    plotted(curve, f"{name} on handwritten digits", given.folder / f"digits-{name}.png")


if __name__ == "__main__":
    main()
