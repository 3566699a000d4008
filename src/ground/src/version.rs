//! Versions that are shown outside.

use std::sync::OnceLock;

/// Our own.
pub const QUORATE: &str = env!("CARGO_PKG_VERSION");
/// The version of Nomad whose interface is spoken. Job files ask for it (`attr.nomad.version`), so
/// it rises when the interface does.
pub const NOMAD: &str = "2.0.6";

/// Of what this program was built, as far as whoever built it said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Build {
    pub commit: Option<&'static str>,
    /// A day, `2026-11-28`.
    pub date: Option<&'static str>,
}

static BUILD: OnceLock<Build> = OnceLock::new();

impl Build {
    /// Told by `main`, the one file that is compiled again for each commit.
    pub fn set(self) {
        BUILD.get_or_init(|| self);
    }

    /// Of this program; of a test nothing is known.
    pub fn own() -> Self {
        BUILD.get().copied().unwrap_or_default()
    }

    /// Version and commit in one word, by which builds are compared.
    pub fn shown(self) -> String {
        self.commit.map_or_else(|| QUORATE.to_owned(), |commit| format!("{QUORATE}+{commit}"))
    }

    /// What there is to say of it, as servers and agents tell it.
    pub fn facts(self) -> [(&'static str, String); 4] {
        let shown = |known: Option<&str>| known.unwrap_or("unknown").to_owned();
        [
            ("version", QUORATE.to_owned()),
            ("commit", shown(self.commit)),
            ("build_date", shown(self.date)),
            ("generation", fsm::GENERATION.to_string()),
        ]
    }
}
