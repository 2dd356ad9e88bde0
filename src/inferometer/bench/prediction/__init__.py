"""What hardware and estimator say of a case, before it runs and after."""
