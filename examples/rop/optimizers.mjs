// NAdam and RMSprop (spec/nadam.md, spec/rmsprop.md) by docs/protocol.md:
//
//     refopt check 'cmd:node optimizers.mjs' --optimizer nadam
import { createInterface } from "node:readline";

// -- the optimizers: one step of one array; `round` stores a number in the dtype of the case -------
const mu = (t, h) => h.beta1 * (1 - 0.5 * 0.96 ** (t * h.momentum_decay));

function nadam(x, grad, h, options, round) {
  const t = ++x.t;
  x.product *= mu(t, h);
  const here = (1 - mu(t, h)) / (1 - x.product);
  const ahead = mu(t + 1, h) / (1 - x.product * mu(t + 1, h));
  for (let j = 0; j < grad.length; j++) {
    let p = x.param[j];
    let g = options.maximize ? -grad[j] : grad[j];
    if (options.decoupled_weight_decay) p -= h.lr * h.weight_decay * p;
    else g += h.weight_decay * p;
    x.m[j] = round(h.beta1 * x.m[j] + (1 - h.beta1) * g);
    x.v[j] = round(h.beta2 * x.v[j] + (1 - h.beta2) * g * g);
    const vHat = x.v[j] / (1 - h.beta2 ** t);
    const mHat = ahead * x.m[j] + here * g;
    x.param[j] = round(p - (h.lr * mHat) / (Math.sqrt(vHat) + h.epsilon));
  }
}

function rmsprop(x, grad, h, options, round) {
  for (let j = 0; j < grad.length; j++) {
    const g = grad[j];
    x.v[j] = round(h.rho * x.v[j] + (1 - h.rho) * g * g);
    let variance = x.v[j];
    if (options.centered) {
      x.a[j] = round(h.rho * x.a[j] + (1 - h.rho) * g);
      variance -= x.a[j] ** 2;
    }
    let change = g / (Math.sqrt(variance) + h.epsilon);
    if (h.momentum > 0) change = x.buffer[j] = round(h.momentum * x.buffer[j] + change);
    x.param[j] = round(x.param[j] - h.lr * change);
  }
}

const KNOWN = {
  nadam: {
    step: nadam,
    shows: () => ["m", "v"],
    takes: ["beta1", "beta2", "weight_decay", "momentum_decay", "maximize", "decoupled_weight_decay"],
  },
  rmsprop: {
    step: rmsprop,
    shows: (h, options) => [
      "v",
      ...(options.centered ? ["a"] : []),
      ...(h.momentum > 0 ? ["buffer"] : []),
    ],
    takes: ["rho", "momentum", "centered"],
  },
};

// -- the protocol ---------------------------------------------------------------------------------
function decode(bits, wide) {
  const bytes = Buffer.from(bits, "hex");
  const size = wide ? 8 : 4;
  return Array.from({ length: bytes.length / size }, (_, j) =>
    wide ? bytes.readDoubleBE(j * size) : bytes.readFloatBE(j * size),
  );
}

function encode(values, wide) {
  const size = wide ? 8 : 4;
  const bytes = Buffer.alloc(values.length * size);
  values.forEach((x, j) => (wide ? bytes.writeDoubleBE(x, j * size) : bytes.writeFloatBE(x, j * size)));
  return bytes.toString("hex");
}

const numbers = (hyper) => Object.fromEntries(Object.entries(hyper).map(([k, x]) => [k, Number(x)]));

let optimizer;
let running;

const answer = {
  hello(q) {
    optimizer = KNOWN[q.optimizer];
    const plain = ["float32", "float64", "several", "missing", "set_state", "lr", "epsilon"];
    const takes = [...plain, ...optimizer.takes];
    const known = { name: "optimizers.mjs", version: process.version, takes };
    return { rop: 1, optimizer: q.optimizer, suite: q.suite, ...known };
  },
  case(q) {
    const wide = q.dtype === "float64";
    const arrays = q.params.map((bits) => {
      const param = decode(bits, wide);
      const zeros = () => param.map(() => 0);
      return { param, m: zeros(), v: zeros(), a: zeros(), buffer: zeros(), t: 0, product: 1 };
    });
    running = { wide, arrays, hyper: numbers(q.hyper), options: q.options };
    return {};
  },
  step(q) {
    const { wide, arrays, hyper, options } = running;
    Object.assign(hyper, numbers(q.hyper ?? {}));
    q.grads.forEach((bits, i) => {
      const round = wide ? (x) => x : Math.fround;
      if (bits !== null) optimizer.step(arrays[i], decode(bits, wide), hyper, options, round);
    });
    const shown = ["param", ...optimizer.shows(hyper, options)];
    return Object.fromEntries(shown.map((q) => [q, arrays.map((x) => encode(x[q], wide))]));
  },
  set_state(q) {
    for (const [name, column] of Object.entries(q))
      running.arrays.forEach((x, i) => {
        if (name === "t" || name === "product") [x[name]] = decode(column[i], true);
        else if (name in x) x[name] = decode(column[i], running.wide);
      });
    return {};
  },
  bye: () => ({}),
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const question = JSON.parse(line);
  console.log(JSON.stringify({ seq: question.seq, ...answer[question.op](question) }));
});
