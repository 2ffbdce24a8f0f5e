"""As torch_nadam, of an optimizer that loads its own state_dict after every step."""

import copy

import torch
import torch_nadam

NAdam = torch.optim.NAdam


class Reloaded(NAdam):
    def step(self, closure=None):
        loss = NAdam.step(self, closure)
        self.load_state_dict(copy.deepcopy(self.state_dict()))
        return loss


if __name__ == "__main__":
    torch.optim.NAdam = Reloaded
    torch_nadam.main()
