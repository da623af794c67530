"""The notebooks: ``python -m tests.notebooks`` runs them all; the tests, with tiny budgets."""
