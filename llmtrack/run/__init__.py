"""Run an experiment as a tracked study and return its results: `llmtrack.run("precision", dtypes=["float32",
"bfloat16"])`.

    study = llmtrack.run("precision", model="synthetic:tiny", dtypes=["float32", "bfloat16"])
    print(study)          # the table and the reading; in a notebook `study` alone shows both
    study.runs            # a pandas DataFrame with a row per scenario

Call: llmtrack.run(experiment, *, console=None, quiet=False, **options)

Args:
    experiment: name, such as `precision`, `suite` or `tune`.
    console: a `rich` console for progress and report; None for progress on stderr, or in a display in a notebook.
    quiet: show no progress.
    options: parameters of the experiment by the names of docs/commands.md, lists as lists.

Returns:
    A `Finished`: `runs`, `reading`, `table`, `study_id`, `problems`.

The package also contains the machinery of a study: plan, executors, progress, resume and suite.
"""

from llmtrack.host.callable_package import callable_package

callable_package(__name__, "llmtrack.run.notebook", "run")
