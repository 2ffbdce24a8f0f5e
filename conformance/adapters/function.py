"""Run a function (param, grad, state, **hyper) -> (param, state) by ROP/1 (docs/protocol.md).

    python function.py MODULE:FUNCTION KNOWN

KNOWN is a JSON object: `documented` has the keyword of each hyperparameter and option by its name
in vectors, `alike` the keyword for what vectors or other optimizers call it, `others` lists those
that the documentation lacks, `absent` has what a hyperparameter is that a case does not state,
`options` lists those that are true or false; `arrays` and `numbers` are what a state may show;
`path` lists folders of modules. A function is given what it names, with **hyper all that is
documented. Its state is None at first; a dict or a named tuple shows what it has under those names.
It may write to its param and its state, and to nothing else that it is given. A function whose
attribute `rejects` is true is also given what it must refuse, with a ValueError or a TypeError; its
attribute `lacks` lists words of the protocol that it does not take.

One of an optimizer of layers is called once a step, with lists of all parameters and gradients:
(params, grads, state, *, layers, names, statistics, **hyper) -> (params, state).
"""

import contextlib
import difflib
import importlib
import inspect
import json
import os
import sys
import traceback

from _adapter import from_bits, np, to_bits

with contextlib.suppress(ImportError):  # NumPy itself has no bfloat16
    importlib.import_module("ml_dtypes")

COUPLED = ("global_clipnorm", "order")  # what a function of one parameter cannot know
LAYERED = ("layers", "names", "statistics")  # what one of a whole net is given besides
SHOWN = ("float16", "bfloat16", "float32", "float64")  # dtypes of a state that is judged
WROTE = "writes to a gradient that it was given, which is its caller's"


class Misuse(Exception):
    """There is no such function, or it cannot be called."""


class Breach(Exception):
    """A function gives what is no answer."""


class Function:
    """The function, and which keyword it takes for each name."""

    def __init__(self, place, known, optimizer):
        self.optimizer = optimizer
        self.call, self.known, self.notes = found(place, known["path"]), known, []
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
        self._named(list(given))

    def _named(self, given):
        """Raises Misuse where a call must fail; a name that is only near to a keyword is noted."""
        places = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(places) < 3 and not any(p.kind is p.VAR_POSITIONAL for p in given):
            raise Misuse(
                "it must take (param, grad, state, **hyper), and takes (%s)" % _names(given)
            )
        documented = [keyword.split("[")[0] for keyword in self.known["documented"].values()]
        known = list(dict.fromkeys(documented))
        also = known + self.known["others"] + list(LAYERED if self.known["factored"] else ())
        others = [p for p in given if p not in places[:3] and p.name not in also]
        others = [p for p in others if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        meant = {p.name: self._meant(p.name, known) for p in others}
        needed = [p for p in others if p.default is p.empty]
        near = [p for p in others if p not in needed and meant[p.name]]
        for some, then in ((needed, ""), (near, ", by default as it is")):
            if some:
                wanted = ["%s for %s" % (meant[p.name], p.name) for p in some if meant[p.name]]
                ask = "; did you mean %s?" % ", ".join(wanted) if wanted else ""
                said = "what it names must be among %s" % ", ".join(known)
                self.notes.append("%s; got %s%s%s" % (said, _names(some), then, ask))
        if needed:
            raise Misuse(self.notes[0])

    def _meant(self, name, known):
        """The keyword that another name may stand for, if any."""
        close = difflib.get_close_matches(name, known, 1)
        return self.known["alike"].get(name) or (close[0] if close else None)

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

    def takes(self):
        """The words of the protocol for what it takes."""
        words = ["float16", "float32", "float64", "several", "missing"]
        words += ["bfloat16"] * ("ml_dtypes" in sys.modules) + ["rejects"] * self.rejects
        words += ["schedule"] * bool(self.known["factored"]) + self.known["kinds"]
        words += [name for name in self.keywords if name not in COUPLED]
        return [word for word in words if word not in getattr(self.call, "lacks", ())]

    def shown(self, state, param):
        """The quantities that a state shows, as arrays."""
        state = state._asdict() if hasattr(state, "_asdict") else state
        if not isinstance(state, dict):
            return {}
        state = {q: x for q, x in state.items() if x is not None}
        found = {q: np.asarray(state[q]) for q in self.known["arrays"] if q in state}
        found = {q: x for q, x in found.items() if x.dtype.kind == "f" or str(x.dtype) in SHOWN}
        for q, x in found.items():
            if x.shape != param.shape or str(x.dtype) not in SHOWN:
                wanted = "of shape %s, as param, in %s" % (param.shape, " or ".join(SHOWN))
                raise Breach(
                    "state[%r] must be %s, or have another name, which is not judged; "
                    "got shape %s in %s" % (q, wanted, x.shape, x.dtype)
                )
        for q in [q for q in self.known["numbers"] if q in state]:
            if np.size(state[q]) != 1 or np.asarray(state[q]).dtype.kind not in "iuf":
                raise Breach("state[%r] must be one number; got %.80r" % (q, state[q]))
            found[q] = np.float64(np.reshape(state[q], ()))
        return found


def found(place, folders):
    """A function by its module and name."""
    module, name = place.split(":")
    folders = [os.getcwd()] + [x for x in folders if x != os.getcwd()]
    sys.path[:0] = folders
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not (module + ".").startswith(str(error.name) + "."):
            raise  # it is there, and imports what is not
        raise Misuse(
            "there is no module %s in %s, and none is installed for %s"
            % (module, ", ".join(folders), sys.executable)
        ) from None
    call = getattr(loaded, name, None)
    if not callable(call):
        there = [key for key, x in vars(loaded).items() if callable(x)]
        close = difflib.get_close_matches(name, there, 1)
        ask = "; did you mean %s?" % close[0] if close else ""
        raise Misuse("%s has no function %s%s" % (loaded.__file__, name, ask))
    return call


def _names(parameters):
    return ", ".join(p.name for p in parameters)


class Lent:
    """Arrays that belong to the caller: who writes to one, now or at a later step, is told."""

    def __init__(self):
        self.arrays = []

    def lend(self, array):
        self.arrays = self.arrays[-99:] + [(array, array.tobytes())]
        return array

    def written(self):
        return any(array.tobytes() != before for array, before in self.arrays)


class Case:
    """A case under way: one call for each parameter."""

    def __init__(self, function, question):
        self.function, self.hyper, self.options = function, question["hyper"], question["options"]
        self.params = [
            from_bits(bits, question["dtype"], shape)
            for bits, shape in zip(question["params"], question["shapes"])
        ]
        self.states, self.lent = [None] * len(self.params), Lent()
        self.kind = "invalid-hyperparameter"  # why it would be refused
        self.narrow = question["dtype"] == "bfloat16"

    def step(self, question):
        """The answer to a step."""
        if self.function.optimizer == "rmsprop" and not any(question["grads"]):
            raise NotImplementedError("a function of one parameter does not see that none moves")
        self.hyper = dict(self.hyper, **question.get("hyper", {}))
        for i, bits in enumerate(question["grads"]):
            if bits is not None:
                self.params[i], self.states[i] = self.stepped(i, bits)
        shown = [self.function.shown(s, p) for s, p in zip(self.states, self.params)]
        answer = dict(param=[to_bits(p) for p in self.params], **self.faults())
        for q in sorted({q for quantities in shown for q in quantities}):
            arrays = [quantities.get(q) for quantities in shown]
            answer[q] = [None if x is None else to_bits(x) for x in arrays]
            dtypes = {str(x.dtype) for x in arrays if x is not None}
            if dtypes != {str(self.params[0].dtype)}:
                answer.setdefault("dtypes", {})[q] = dtypes.pop()
        return answer

    def faults(self):
        return {"violation": WROTE} if self.lent.written() else {}

    def stepped(self, i, bits):
        old = self.params[i]
        keywords = self.function.hyper(self.hyper, self.options)
        fits = len(bits) == 2 * old.nbytes
        self.kind = self.kind if fits else "shape-mismatch"
        grad = self.lent.lend(from_bits(bits, old.dtype, old.shape if fits else (-1,)))
        given = self.function.call(old, grad, self.states[i], **keywords)
        if not isinstance(given, tuple) or len(given) != 2:
            raise Breach("the function must return (param, state), got %.80r" % (given,))
        new = np.asarray(given[0])
        if (new.dtype, new.shape) != (old.dtype, old.shape):
            wanted = "%s of shape %s" % (old.dtype, old.shape)
            got = "%s of shape %s" % (new.dtype, new.shape)
            raise Breach("the function must return a param as it was, %s; got %s" % (wanted, got))
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
            self.lent.lend(from_bits(b, p.dtype, p.shape if fit else (-1,)))
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
            raise Breach("the function must return (params, state), got %.80r" % (given,))
        new = [np.asarray(p) for p in given[0]]
        wanted = [(p.dtype, p.shape) for p in self.params]
        if [(p.dtype, p.shape) for p in new] != wanted:
            raise Breach("the function must return params as they were, %s" % (wanted,))
        self.params, self.state = new, given[1]
        return self.answer()

    def answer(self):
        answer = dict(param=[to_bits(p) for p in self.params], **self.faults())
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
    if case and case.narrow and isinstance(error, (Breach, TypeError)):
        return {"skipped": "bfloat16, which NumPy itself does not have"}
    said = str(error) if isinstance(error, Breach) else "%s: %s" % (type(error).__name__, error)
    where = place(error, case.function.call if case else None)
    return {"error": "%s (%s, line %d)" % ((said,) + where) if where else said}


def place(error, call):
    """(file, line) of the function's own code that an error comes from, the last one."""
    code = getattr(call, "__code__", None) or getattr(type(call).__call__, "__code__", None)
    here = os.path.dirname(os.path.abspath(__file__))
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    frames = [f for f in frames if not f[0].startswith((here, "<"))]
    own = [f for f in frames if code and f[0] == code.co_filename]
    start = [(code.co_filename, code.co_firstlineno)] if code else []
    found = (own or frames or start)[-1:]
    return (os.path.basename(found[0][0]), found[0][1]) if found else None


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints is no answer
    named, known = sys.argv[1], json.loads(sys.argv[2])
    case = function = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {}
            if question["op"] == "hello":
                function = Function(named, known, question["optimizer"])
                answer = {
                    "rop": 1,
                    "optimizer": question["optimizer"],
                    "suite": question["suite"],
                    "name": named,
                    "version": "on NumPy " + np.__version__,
                    "takes": function.takes(),
                    "notes": function.notes,
                }
            elif question["op"] == "case":
                case = (Net if "layers" in question else Case)(function, question)
            elif question["op"] == "step":
                answer = case.step(question)
        except Misuse as misuse:
            answer = {"usage": "py:%s: %s" % (named, misuse)}
        except NotImplementedError as reason:
            answer = {"skipped": str(reason) or "NotImplementedError"}
        except Exception as error:
            answer = failure(error, case)
        out.write(json.dumps(dict(answer, seq=question["seq"])) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
