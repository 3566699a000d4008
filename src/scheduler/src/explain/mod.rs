//! What a plan does, said for people.

pub(crate) mod annotate;
