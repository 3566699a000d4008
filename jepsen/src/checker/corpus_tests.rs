//! Tests of the checkers against histories with known verdicts (`corpus/`).
