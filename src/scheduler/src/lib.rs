//! Schedulers: a pure function from a state snapshot and an evaluation to a plan.
