//! jepsen.
fn main() {}
