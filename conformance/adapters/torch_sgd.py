"""Run the installed torch.optim.SGD on recorded cases (protocol: conformance/make.py).

Needs PyTorch and the standard library. The profile is named after torch 2.13, the release it
describes; hello states the version that really ran.
"""

import functools
import json
import sys

import torch
import torch_rmsprop  # first: it silences torch's remark on NumPy
from torch_nadam import answer, hello, say

MODES = {"torch-2.13": {"foreach": False}}


def main():
    torch.set_num_threads(1)
    say({"hello": hello(list(MODES))})
    run = functools.partial(torch_rmsprop.run, made=torch.optim.SGD)
    for line in sys.stdin:
        say(answer(json.loads(line), MODES, run))


if __name__ == "__main__":
    main()
