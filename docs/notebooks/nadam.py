"""NAdam's schedule and its path: sliders for psi, epsilon, dtype and profile.

Run it with `marimo edit docs/notebooks/nadam.py`.
"""

import marimo

app = marimo.App(app_title="NAdam and its schedule")


@app.cell(hide_code=True)
def _():
    import marimo as mo
    import numpy as np
    from matplotlib.figure import Figure

    from refopt.problems import PROBLEMS
    from refopt.rules.nadam import PROFILES
    from refopt.teach.trace import as_markdown, trace

    return Figure, PROBLEMS, PROFILES, as_markdown, mo, np, trace


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # NAdam and its schedule

    The coefficient $\mu_t = \beta_1 (1 - \frac{1}{2} \cdot 0.96^{t \psi})$ rises from half of
    $\beta_1$ to all of it, and $\psi$ says how fast. The product of all coefficients so far is what
    the moment is corrected by. Paths: the documented rule beside that of a release, on the
    gradients that the first one saw. A star marks the first difference of each quantity.
    """)
    return


@app.cell(hide_code=True)
def _(PROBLEMS, PROFILES, mo):
    problem_ui = mo.ui.dropdown(
        [name for name, p in PROBLEMS.items() if p.domain], "rosenbrock", label="problem"
    )
    profile_ui = mo.ui.dropdown(
        [name for name in PROFILES if name != "documented"], "optax-0.2", label="profile"
    )
    dtype_ui = mo.ui.dropdown(["float16", "float32", "float64"], "float64", label="dtype")
    psi_ui = mo.ui.slider(
        steps=[0.0, 0.004, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0], value=0.1, label="ψ", show_value=True
    )
    epsilon_ui = mo.ui.slider(
        steps=[10.0**k for k in range(-10, 1)], value=1e-8, label="ε", show_value=True
    )
    steps_ui = mo.ui.slider(4, 200, value=60, label="steps", show_value=True)
    mo.vstack(
        [
            mo.hstack([problem_ui, profile_ui, dtype_ui], justify="start", wrap=True),
            mo.hstack([psi_ui, epsilon_ui, steps_ui], justify="start", wrap=True),
        ]
    )
    return dtype_ui, epsilon_ui, problem_ui, profile_ui, psi_ui, steps_ui


@app.cell(hide_code=True)
def _(dtype_ui, epsilon_ui, problem_ui, profile_ui, psi_ui, steps_ui):
    picked = {
        "problem": problem_ui.value,
        "steps": steps_ui.value,
        "against": profile_ui.value,
        "dtype": dtype_ui.value,
        "given": {"lr": 0.1, "epsilon": epsilon_ui.value, "momentum_decay": psi_ui.value},
    }
    return (picked,)


@app.cell(hide_code=True)
def _(picked, trace):
    table, second = (trace("nadam", **picked, element=i) for i in (0, 1))
    return second, table


@app.cell(hide_code=True)
def _(Figure, PROBLEMS, np, picked, second, table):
    figure = Figure(figsize=(9, 3.8), layout="tight")
    left, right = figure.subplots(1, 2)
    steps = range(1, picked["steps"] + 1)
    mine = table.series["documented"]
    for quantity, label in (("mu", "μₜ"), ("product", "product of the μᵢ")):
        left.plot(steps, [mine[t, quantity] for t in steps], label=label)
    left.set(xlabel="step", ylim=(0, 1))
    left.legend()

    problem = PROBLEMS[picked["problem"]]
    x, y = (np.linspace(*ends, 80) for ends in problem.domain)
    heights = problem.value(np.stack(np.meshgrid(x, y)))
    right.contour(x, y, np.log1p(heights - heights.min()), levels=14, colors="0.75", linewidths=0.6)
    for name, style in zip(table.series, ("-", "--"), strict=True):
        path = [
            [problem.first[i], *(part.series[name][t, "param"] for t in steps)]
            for i, part in enumerate((table, second))
        ]
        right.plot(*path, style, label=name)
    right.set(xlim=problem.domain[0], ylim=problem.domain[1], title=picked["problem"])
    right.legend()
    figure
    return (figure,)


@app.cell(hide_code=True)
def _(as_markdown, mo, picked, trace):
    shown = trace("nadam", **{**picked, "steps": 4})
    mo.md(as_markdown(shown))
    return (shown,)


if __name__ == "__main__":
    app.run()
