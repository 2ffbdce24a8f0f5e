"""Run a function (param, grad, state, **hyper) -> (param, state) by ROP/1 (docs/protocol.md).

    python function.py MODULE:FUNCTION KNOWN

KNOWN is a JSON object: `documented` has the keyword of each hyperparameter and option by its name
in vectors, `others` lists those that the documentation lacks, `absent` has what a hyperparameter is
that a case does not state, `options` lists those that are true or false; `arrays` and `numbers` are
what a state may show. A function is given what it names, with
**hyper all that is documented. Its state is None at first; a dict or a named tuple shows what it
has under those names. A function whose attribute `rejects` is true is also given what it must
refuse, with a ValueError or a TypeError.

One of an optimizer of layers is called once a step, with lists of all parameters and gradients:
(params, grads, state, *, layers, names, statistics, **hyper) -> (params, state).
"""

import importlib
import inspect
import json
import os
import sys
import traceback

from _adapter import from_bits, np, to_bits

COUPLED = ("global_clipnorm", "order")  # what a function of one parameter cannot know


class Function:
    """The function, and which keyword it takes for each name."""

    def __init__(self, place, known, optimizer):
        self.optimizer = optimizer
        module, name = place.split(":")
        sys.path.insert(0, os.getcwd())
        self.call = getattr(importlib.import_module(module), name)
        self.known = known
        self.rejects = bool(getattr(self.call, "rejects", False))
        given = inspect.signature(self.call).parameters.values()
        every = any(p.kind is p.VAR_KEYWORD for p in given)
        named = {p.name for p in given}
        self.keywords = {
            name: keyword
            for name, keyword in known["documented"].items()
            if every or keyword.split("[")[0] in named
        }
        self.keywords.update((name, name) for name in known["others"] if name in named)

    def hyper(self, hyper, options):
        """The keyword arguments of a call."""
        given = {}
        values = dict(self.known["absent"])
        values.update((name, number(x)) for name, x in hyper.items())
        values.update((name, bool(options.get(name))) for name in self.known["options"])
        for name, keyword in self.keywords.items():
            if name in values:
                base = keyword.split("[")[0]
                pair = given.get(base, ()) + (values[name],)  # betas[0] comes before betas[1]
                given[base] = values[name] if base == keyword else pair
        return given

    def shown(self, state):
        """The quantities that a state shows, as arrays."""
        state = state._asdict() if hasattr(state, "_asdict") else state
        if not isinstance(state, dict):
            return {}
        found = {q: np.asarray(state[q]) for q in self.known["arrays"] if q in state}
        numbers = {q: np.float64(state[q]) for q in self.known["numbers"] if q in state}
        return dict({q: x for q, x in found.items() if x.dtype.kind == "f"}, **numbers)


class Case:
    """A case under way: one call for each parameter."""

    def __init__(self, function, question):
        self.function, self.hyper, self.options = function, question["hyper"], question["options"]
        self.params = [
            from_bits(bits, question["dtype"], shape)
            for bits, shape in zip(question["params"], question["shapes"])
        ]
        self.states = [None] * len(self.params)
        self.kind = "invalid-hyperparameter"  # why it would be refused

    def step(self, question):
        """The answer to a step."""
        if self.function.optimizer == "rmsprop" and not any(question["grads"]):
            raise NotImplementedError("a function of one parameter does not see that none moves")
        self.hyper = dict(self.hyper, **question.get("hyper", {}))
        for i, bits in enumerate(question["grads"]):
            if bits is not None:
                self.params[i], self.states[i] = self.stepped(i, bits)
        shown = [self.function.shown(state) for state in self.states]
        answer = {"param": [to_bits(p) for p in self.params]}
        for q in sorted({q for quantities in shown for q in quantities}):
            arrays = [quantities.get(q) for quantities in shown]
            answer[q] = [None if x is None else to_bits(x) for x in arrays]
            dtypes = {str(x.dtype) for x in arrays if x is not None}
            if dtypes != {str(self.params[0].dtype)}:
                answer.setdefault("dtypes", {})[q] = dtypes.pop()
        return answer

    def stepped(self, i, bits):
        old = self.params[i]
        keywords = self.function.hyper(self.hyper, self.options)
        fits = len(bits) == 2 * old.nbytes
        self.kind = self.kind if fits else "shape-mismatch"
        grad = from_bits(bits, old.dtype, old.shape if fits else (-1,))
        given = self.function.call(old, grad, self.states[i], **keywords)
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError("the function must return (param, state), got %.80r" % (given,))
        new = np.asarray(given[0])
        if (new.dtype, new.shape) != (old.dtype, old.shape):
            wanted = "%s of shape %s" % (old.dtype, old.shape)
            got = "%s of shape %s" % (new.dtype, new.shape)
            raise TypeError(
                "the function must return a param as it was, %s; got %s" % (wanted, got)
            )
        return new, given[1]


class Net(Case):
    """A case of an optimizer of layers: one call for all parameters."""

    def __init__(self, function, question):
        super().__init__(function, question)
        self.layers = [dict(x, params=list(x["params"])) for x in question["layers"]]
        self.names, self.state = question["names"], None

    def step(self, question):
        t, given = question["t"], question.get("statistics", {})
        hyper = {}
        for name, x in self.hyper.items():
            if isinstance(x, list) and len(x) < t:
                raise NotImplementedError("a function does not see that a schedule has ended")
            hyper[name] = x[t - 1] if isinstance(x, list) else x
        fits = [len(b) == 2 * p.nbytes for b, p in zip(question["grads"], self.params)]
        grads = [
            from_bits(b, p.dtype, p.shape if fit else (-1,))
            for b, p, fit in zip(question["grads"], self.params, fits)
        ]
        self.kind = self.kind if all(fits) else "shape-mismatch"
        seen = {
            name: {q: from_bits(x["bits"], x["dtype"], x["shape"]) for q, x in arrays.items()}
            for name, arrays in given.items()
        }
        if not seen and any(x["kind"] in self.function.known["factored"] for x in self.layers):
            refreshes = (t - 1) % int(float(hyper["frequency"])) == 0
            self.kind = "missing-statistics" if refreshes else self.kind
        given = self.function.call(
            *(self.params, grads, self.state),
            layers=self.layers,
            names=self.names,
            statistics=seen or None,
            **self.function.hyper(hyper, self.options),
        )
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError("the function must return (params, state), got %.80r" % (given,))
        new = [np.asarray(p) for p in given[0]]
        wanted = [(p.dtype, p.shape) for p in self.params]
        if [(p.dtype, p.shape) for p in new] != wanted:
            raise TypeError("the function must return params as they were, %s" % (wanted,))
        self.params, self.state = new, given[1]
        return self.answer()

    def answer(self):
        answer = {"param": [to_bits(p) for p in self.params]}
        shown = self.state if isinstance(self.state, dict) else {}
        for q in self.function.known["arrays"] + self.function.known["factors"]:
            if shown.get(q) is not None:
                arrays = [np.asarray(x) for x in shown[q]]
                by_layer = q in self.function.known["factors"]
                answer[q] = [typed(x) if by_layer else to_bits(x) for x in arrays]
        return answer


def typed(array):
    """An array that says what it is."""
    return {"bits": to_bits(array), "dtype": str(array.dtype), "shape": list(array.shape)}


def number(x):
    """A hyperparameter as it was written: an int, a float, or one a step."""
    if isinstance(x, list):
        return [number(y) for y in x]
    return int(x) if x.isdigit() else float(x)


def failure(error, case):
    """The answer where a function raises: a refusal, if it says that it refuses, else a crash."""
    if case and case.function.rejects and isinstance(error, (ValueError, TypeError)):
        return {"rejected": {"kind": case.kind, "message": str(error)}}
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "%s, line %d" % (os.path.basename(last.filename), last.lineno)
    return {"error": "%s: %s (%s)" % (type(error).__name__, error, where)}


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints is no answer
    place, known = sys.argv[1], json.loads(sys.argv[2])
    case = function = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {}
            if question["op"] == "hello":
                function = Function(place, known, question["optimizer"])
                words = ["float16", "float32", "float64", "several", "missing"]
                words += ["rejects"] if function.rejects else []
                words += ["schedule"] * bool(known["factored"]) + known["kinds"]
                answer = {
                    "rop": 1,
                    "optimizer": question["optimizer"],
                    "suite": question["suite"],
                    "name": place,
                    "version": "on NumPy " + np.__version__,
                    "takes": words + [name for name in function.keywords if name not in COUPLED],
                }
            elif question["op"] == "case":
                case = (Net if "layers" in question else Case)(function, question)
            elif question["op"] == "step":
                answer = case.step(question)
        except NotImplementedError as reason:
            answer = {"skipped": str(reason) or "NotImplementedError"}
        except Exception as error:
            answer = failure(error, case)
        out.write(json.dumps(dict(answer, seq=question["seq"])) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
