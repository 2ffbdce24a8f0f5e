"""NAdam's schedule and its path: sliders for psi, epsilon, dtype and profile.

Run it with `marimo edit docs/notebooks/nadam.py`.
"""

import marimo

app = marimo.App(width="medium", app_title="NAdam and its schedule")


@app.cell(hide_code=True)
def _():
    import marimo as mo

    from refopt.problems import PROBLEMS
    from refopt.rules.nadam import PROFILES
    from refopt.teach import plot
    from refopt.teach.trace import as_markdown, trace

    return PROBLEMS, PROFILES, as_markdown, mo, plot, trace


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
def _(PROBLEMS, mo, picked, plot, second, table):
    mine, steps = table.series["documented"], list(range(1, picked["steps"] + 1))
    curves = [
        plot.Curve(label, steps, [mine[t, quantity] for t in steps])
        for quantity, label in (("mu", "$\\mu_t$"), ("product", "product of the $\\mu_i$"))
    ]
    problem = PROBLEMS[picked["problem"]]
    paths = [
        plot.Path2(
            name,
            *(
                [start, *(part.series[name][t, "param"] for t in steps)]
                for start, part in zip(problem.first, (table, second), strict=True)
            ),
        )
        for name in table.series
    ]
    figures = [
        plot.draw_curves(curves, "the schedule", "coefficient"),
        plot.draw_paths(problem, paths),
    ]
    figures[0].axes[0].set(yscale="linear", ylim=(0, 1))
    for figure in figures:
        figure.set_size_inches(5.2, 4.2)  # two beside each other
    mo.hstack(figures, justify="start", wrap=True)
    return (figures,)


@app.cell(hide_code=True)
def _(as_markdown, mo, picked, trace):
    shown = trace("nadam", **{**picked, "steps": 4})
    mo.md(as_markdown(shown))
    return (shown,)


if __name__ == "__main__":
    app.run()
