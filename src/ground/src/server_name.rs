//! The one form in which the number of a server is shown and read: sixteen hexadecimal digits.
//! Numbers are random, so a form that is cut or written otherwise in one place is not found in the
//! other.

use std::fmt;

/// The number of a server as it is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ServerName(pub u64);

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl ServerName {
    /// The number behind a name, with its leading zeros or without.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Self)
    }

    /// Several, with commas.
    pub fn list(ids: impl IntoIterator<Item = u64>) -> String {
        let names: Vec<_> = ids.into_iter().map(|id| Self(id).to_string()).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_shown() {
        for id in [1, 0xab_cdef, u64::MAX] {
            let name = ServerName(id).to_string();
            assert_eq!(name.len(), 16);
            assert_eq!(ServerName::parse(&name).map(|name| name.0), Some(id));
        }
        assert_eq!(ServerName::parse("ab").map(|name| name.0), Some(0xab));
        for wrong in ["", "+1", "g", "00000000000000001"] {
            assert!(ServerName::parse(wrong).is_none_or(|name| name.0 == 1), "{wrong}");
        }
        assert!(ServerName::parse("+1").is_none());
        assert_eq!(ServerName::list([1, 2]), "0000000000000001, 0000000000000002");
    }
}
