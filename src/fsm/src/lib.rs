//! The replicated state machine: pure, no I/O, no clock, no randomness.
