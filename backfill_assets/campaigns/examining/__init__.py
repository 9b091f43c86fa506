"""The doctor: compares the ledger with Delta logs, files, reports and the scheduler, and mends what is safe."""
