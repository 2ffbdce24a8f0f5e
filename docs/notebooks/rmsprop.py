"""Two RMSprops on the same gradients: sliders for epsilon, rho, dtype and profile.

Run it with `marimo edit docs/notebooks/rmsprop.py`.
"""

import marimo

app = marimo.App(width="medium", app_title="RMSprop, number by number")


@app.cell(hide_code=True)
def _():
    import marimo as mo
    import numpy as np

    from refopt.problems import PROBLEMS
    from refopt.rules.rmsprop import PROFILES
    from refopt.teach import plot
    from refopt.teach.trace import as_markdown, trace

    return PROBLEMS, PROFILES, as_markdown, mo, np, plot, trace


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    # RMSprop, number by number

    The documented rule beside that of a release, on the gradients that the first one saw: what
    differs comes from the rule alone. A star marks the first difference of each quantity.
    """)
    return


@app.cell(hide_code=True)
def _(PROBLEMS, PROFILES, mo):
    problem_ui = mo.ui.dropdown(
        [name for name, p in PROBLEMS.items() if p.domain], "quadratic", label="problem"
    )
    profile_ui = mo.ui.dropdown(
        [name for name in PROFILES if name != "documented"], "keras-3", label="profile"
    )
    dtype_ui = mo.ui.dropdown(["float16", "float32", "float64"], "float64", label="dtype")
    epsilon_ui = mo.ui.slider(
        steps=[10.0**k for k in range(-10, 1)], value=1e-1, label="ε", show_value=True
    )
    rho_ui = mo.ui.slider(0.0, 0.99, 0.01, value=0.9, label="ρ", show_value=True)
    steps_ui = mo.ui.slider(1, 40, value=20, label="steps", show_value=True)
    mo.vstack(
        [
            mo.hstack([problem_ui, profile_ui, dtype_ui], justify="start", wrap=True),
            mo.hstack([epsilon_ui, rho_ui, steps_ui], justify="start", wrap=True),
        ]
    )
    return dtype_ui, epsilon_ui, problem_ui, profile_ui, rho_ui, steps_ui


@app.cell(hide_code=True)
def _(dtype_ui, epsilon_ui, problem_ui, profile_ui, rho_ui, steps_ui):
    picked = {
        "problem": problem_ui.value,
        "steps": steps_ui.value,
        "against": profile_ui.value,
        "dtype": dtype_ui.value,
        "given": {"lr": 0.1, "epsilon": epsilon_ui.value, "rho": rho_ui.value},
    }
    return (picked,)


@app.cell(hide_code=True)
def _(picked, trace):
    table = trace("rmsprop", **picked)
    return (table,)


@app.cell(hide_code=True)
def _(mo, np, picked, plot, table):
    steps = list(range(1, picked["steps"] + 1))
    ways = [
        plot.Curve(name, steps, [series[t, "param"] for t in steps])
        for name, series in table.series.items()
    ]
    h = picked["given"]
    sizes = np.logspace(-9, 3, 200)
    root = np.sqrt(1 - h["rho"]) * sizes
    moves = [
        plot.Curve("ε after the root", sizes, sizes / (root + h["epsilon"])),
        plot.Curve("ε under the root", sizes, sizes / np.sqrt(root**2 + h["epsilon"])),
    ]
    figures = [
        plot.draw_curves(ways, "", "first coordinate of the parameter"),
        plot.draw_curves(moves, "", "first move over γ"),
    ]
    (axes,) = figures[1].axes
    axes.set(xscale="log", yscale="log", xlabel="size of the gradient (lines: ε and √ε)")
    for x in (h["epsilon"], h["epsilon"] ** 0.5):
        axes.axvline(x, color="0.6", linewidth=0.8)
    for figure in figures:
        figure.set_size_inches(5.2, 4.2)  # two beside each other
    mo.hstack(figures, justify="start", wrap=True)
    return (figures,)


@app.cell(hide_code=True)
def _(as_markdown, mo, picked, table, trace):
    shown = table if picked["steps"] <= 4 else trace("rmsprop", **{**picked, "steps": 4})
    mo.md(as_markdown(shown))
    return (shown,)


if __name__ == "__main__":
    app.run()
