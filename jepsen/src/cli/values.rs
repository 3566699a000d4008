//! Values of flags as other harnesses write them: servers by name, and classes of faults under other names.
//!
//! Pure. Whatever is not understood is refused with what would be.

use crate::fault::FaultClass;

/// What classes of faults are called elsewhere, and the classes here.
const OTHER_NAMES: [(&str, &[FaultClass]); 5] = [
    ("transfer-leader", &[FaultClass::Transfer]),
    ("packet", &[FaultClass::Delay, FaultClass::Loss]),
    ("bitflip-wal", &[FaultClass::Corrupt]),
    ("bitflip-snap", &[FaultClass::Corrupt]),
    ("truncate-wal", &[FaultClass::Corrupt]),
];

/// The classes that are called so elsewhere.
pub(super) fn other_name(name: &str) -> Option<&'static [FaultClass]> {
    OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, classes)| *classes)
}

/// How many servers have these names.
pub(super) fn node_names(text: &str) -> Result<usize, String> {
    let names: Vec<&str> = text.split(',').collect();
    let in_order = (1_u32..).zip(&names).all(|(number, name)| **name == format!("n{number}"));
    if in_order && matches!(names.len(), 3 | 5) {
        return Ok(names.len());
    }
    Err("servers are n1,n2,n3 or n1,n2,n3,n4,n5, all on this machine".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers_only_say_how_many() {
        assert_eq!(node_names("n1,n2,n3"), Ok(3));
        assert_eq!(node_names("n1,n2,n3,n4,n5"), Ok(5));
        for bad in ["", "n1", "n1,n2", "n2,n1,n3", "n1,n2,n3,n4", "n1, n2, n3", "a,b,c"] {
            assert!(node_names(bad).is_err_and(|error| error.contains("n1,n2,n3")), "{bad}");
        }
    }

    #[test]
    fn classes_have_other_names() {
        let packet: &[FaultClass] = &[FaultClass::Delay, FaultClass::Loss];
        assert_eq!(other_name("packet"), Some(packet));
        assert_eq!(other_name("kill"), None);
    }
}
