//! Versions that are shown outside.

/// Our own.
pub const QUORATE: &str = env!("CARGO_PKG_VERSION");
/// The version of Nomad whose interface is spoken. Job files ask for it (`attr.nomad.version`), so it rises when the interface does.
pub const NOMAD: &str = "2.0.6";
