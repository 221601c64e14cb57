"""The system's Chromium, driven by Playwright, which collects the errors that a page logs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

# What a browser does by itself over the network would only disturb, and in a container root needs --no-sandbox.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# MLflow's own: its UI asks for a user where nobody logs in, and its charts are resized while they are drawn.
KNOWN_ERRORS = ("/mlflow/users/current", "ResizeObserver loop completed")
WAIT_MS = 30_000


def missing() -> str | None:
    """Return the missing requirement and how to install it, or None."""
    if find_spec("playwright") is None:
        return "playwright is not installed (pip install playwright)"
    if shutil.which("chromium") is None:
        return "there is no chromium on this system (Debian: apt-get install chromium)"
    return None


def expect(actual: Any) -> Any:
    """Return Playwright's assertions, imported late, since tests are collected without it, too."""
    from playwright.sync_api import expect as assertions

    assertions.set_options(timeout=WAIT_MS)
    return assertions(actual)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start the system's headless Chromium, and stop it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield chromium
        chromium.close()


class Tab:
    """A page of an MLflow UI, which goes from place to place as a person's does: to load the UI anew takes both cores seconds.

    Attributes:
        page: Playwright's page.
        errors: what the page logged as an error, was refused, or raised, without what MLflow is known for.
    """

    def __init__(self, browser: Browser, server: str, height: int = 900) -> None:
        self.page: Page = browser.new_page(viewport={"width": 1600, "height": height})
        self.page.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self._server = server
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, place: str) -> Page:
        """Open a place of the UI, such as `/experiments/1/runs`, and return the page."""
        # By way of a place that shows nothing of the one before.
        self.page.goto(f"{self._server}/#/nowhere")
        expect(self.page.get_by_text("Page Not Found")).to_be_visible()
        self.page.goto(f"{self._server}/#{place}")
        return self.page

    def _logged(self, message: ConsoleMessage) -> None:
        text = f"{message.text} ({message.location.get('url', '')})"
        if message.type == "error" and not any(known in text for known in KNOWN_ERRORS):
            self.errors.append(text)


def runs_place(experiment_id: str) -> str:
    """Return where the table of an experiment's runs is; without the type MLflow opens its traces."""
    return f"/experiments/{experiment_id}/runs?workflowType=machine_learning"


def models_place(experiment_id: str) -> str:
    """Return where the logged models of an experiment are compared; without the type MLflow calls them versions of an agent."""
    return f"/experiments/{experiment_id}/models?workflowType=machine_learning"


def traces_place(experiment_id: str, run_id: str) -> str:
    """Return where the traces of a run are listed."""
    return f"/experiments/{experiment_id}/runs/{run_id}/traces"


def evaluation_place(experiment_id: str) -> str:
    """Return where MLflow compares the evaluation tables of runs."""
    return f"{runs_place(experiment_id)}&compareRunsMode=ARTIFACT"


def compare_place(experiment_id: str, run_ids: list[str]) -> str:
    """Return where MLflow compares runs."""
    return f"/compare-runs?runs={quote(json.dumps(run_ids))}&experiments={quote(json.dumps([experiment_id]))}"


def artifact_place(experiment_id: str, run_id: str, path: str) -> str:
    """Return where MLflow shows an artifact of a run."""
    return f"/experiments/{experiment_id}/runs/{run_id}/artifacts/{path}"
