"""One worker of THOR runs under mpiexec: takes its share of a batch, writes what it ends with.

Arguments: a JSON list of what to run, and the path of the results, to which the number of the run
and the rank are added.
"""

import json
import sys

import numpy as np

import refopt
from refopt import layers

SAMPLES, POSITIONS = 16, 4 * 4
SHAPES = {
    "conv.weight": (3, 2, 2, 2),
    "conv.bias": (3,),
    "fc1.weight": (3, 4),
    "fc2.weight": (2, 3),
    "emb.weight": (5, 2),
    "ln.gamma": (3,),
    "ln.beta": (3,),
}


def data(exact):
    """(weights, gradients of two steps, inputs, gradients of each sample's loss) of a run."""
    random = np.random.default_rng(20210206)

    def values(*shape):
        # of small integers every sum is exact, in any order
        return random.integers(-4, 5, shape) * 1.0 if exact else random.normal(size=shape)

    weights = {name: values(*shape) for name, shape in SHAPES.items()}
    gradients = [{name: values(*shape) for name, shape in SHAPES.items()} for _ in range(2)]
    inputs = {
        "conv": values(SAMPLES, 2, 4, 4),
        "fc1": values(SAMPLES, 4),
        "fc2": values(SAMPLES, 3),
        "emb": random.integers(0, 5, (SAMPLES, 2)),
    }
    outputs = {
        "conv": values(SAMPLES, 3, 4, 4),
        "fc1": values(SAMPLES, 3),
        "fc2": values(SAMPLES, 2),
        "emb": values(SAMPLES, 2, 2),
    }
    return weights, gradients, inputs, outputs


def optimizer_of(weights, comm, batch, convolution=True, **arguments):
    w = {name: x.copy() for name, x in weights.items()}
    net = [
        layers.Conv2d("conv", weight=w["conv.weight"], bias=w["conv.bias"]),
        layers.Dense("fc1", weight=w["fc1.weight"]),
        layers.Dense("fc2", weight=w["fc2.weight"]),
        layers.Embedding("emb", weight=w["emb.weight"]),
        layers.LayerNorm("ln", weight=w["ln.gamma"], bias=w["ln.beta"]),
    ][not convolution :]
    given = {"learning_rate": np.asarray(0.25), "damping": 0.5, "momentum": 0.5, **arguments}
    return refopt.thor(net, batch_size=batch, frequency=2, comm=comm, **given)


def trained(comm, rank, size, exact=False, **arguments):
    """Two steps, of which the first renews the inverses, by one of `size` workers."""
    weights, gradients, inputs, outputs = data(exact)
    batch = SAMPLES // size
    share = slice(rank * batch, (rank + 1) * batch)
    optimizer = optimizer_of(weights, comm, batch, **arguments)
    first, second = ([g[p.name] for p in optimizer.parameters] for g in gradients)
    optimizer(
        first,
        activations={name: inputs[name][share] for name in optimizer.factored},
        output_gradients={name: outputs[name][share] / batch for name in optimizer.factored},
    )
    optimizer(second)
    return optimizer


def failed(comm, rank, size, **arguments):
    """A step that meets a factor without inverse, on one worker."""
    weights, gradients, *_ = data(False)
    optimizer = optimizer_of(weights, comm, SAMPLES // size, **arguments)
    ready = {
        "conv": layers.Factors(np.eye(8), np.eye(3), 1.0, 1.0),
        "fc1": layers.Factors(np.eye(4) * (-8 if rank == 2 else 1), np.eye(3)),
        "fc2": layers.Factors(np.eye(3), np.eye(2)),
        "emb": layers.Factors(np.ones(5), np.eye(2), 1.0),
    }
    try:
        optimizer([*gradients[0].values()], factors=ready)
    except np.linalg.LinAlgError as error:
        return optimizer, str(error)
    return optimizer, ""


def unequal(comm, rank):
    """What a worker with another batch size than the first is told."""
    try:
        optimizer_of(data(False)[0], comm, SAMPLES + (rank == 2))
    except ValueError as error:
        return {"error": str(error)}
    return {"error": ""}


def result_of(optimizer, error=""):
    state = optimizer.state_dict()["state"]
    inverses = {
        f"{name}/{key}": x
        for name, own in state.items()
        for key, x in own.items()
        if key.endswith("_inverse")
    }
    params = {p.name: p.data for p in optimizer.parameters}
    return {**params, **inverses, "messages": optimizer.messages, "error": error}


def main():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    tasks, path = json.loads(sys.argv[1]), sys.argv[2]
    rank, size = comm.Get_rank(), comm.Get_size()
    for number, task in enumerate(tasks):
        if task.get("unequal"):
            result = unequal(comm, rank)
        elif task.pop("fails", False):
            result = result_of(*failed(comm, rank, size, **task))
        else:
            result = result_of(trained(comm, rank, size, **task))
        np.savez(f"{path}{number}.{rank}.npz", **result)


if __name__ == "__main__":
    main()
