"""What readers see: publishes releases, undoes them and keeps the records correct. Needs no Spark."""
