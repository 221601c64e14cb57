"""Reports of studies and suites: their content, page, files and views in MLflow."""
