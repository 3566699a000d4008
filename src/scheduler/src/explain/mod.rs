//! Explanations of a plan for users.

pub(crate) mod annotate;
